"""Tokens of one sequence or of several, whose attention is computed together and alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext.attention import Attention, AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.job import Job
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, encode

KIND_AND_DIM = [
    (kind, head_dim)
    for kind in ("fp16", "fp8", "q8", "q6", "q4")
    for head_dim in (64, 80, 96, 128, 256)
    if KINDS[kind].fits(head_dim)
]


@dataclass
class Rows:
    """Random tokens of `positions`, and the random pages of their sequences.

    Args:
        kernels, launch: the operation, and what carries it out.
        tables: of each token: which page holds tokens `256 i` and on of its sequence.
        positions: how many tokens are before each.
        heads: those of queries, and of keys and values.
        broken: tokens whose vectors are no numbers.
        least: see `Attention.attention`.
    """

    kernels: Attention
    launch: Callable[[Job], object]
    device: torch.device
    tables: list[list[int]]
    positions: list[int]
    kind: str = "fp16"
    head_dim: int = 64
    heads: tuple[int, int] = (4, 1)
    rules: AttentionRules | None = None
    splits: int = 4
    broken: tuple[int, ...] = ()
    least: int = 0

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        count, (heads, kv_heads) = max(map(max, self.tables)) + 1, self.heads
        self.rules = self.rules or AttentionRules(self.head_dim**-0.5)
        rows = torch.randn(2, kv_heads, count, PAGE_TOKENS, self.head_dim, generator=draw).half().to(self.device)
        kind = KINDS[self.kind]
        keys, key_scales = encode(rows[0], kind.key)
        values, value_scales = encode(rows[1], kind.value)
        self.pages = LayerPages(kind, keys, values, key_scales, value_scales)
        self.qkv = (
            torch.randn(len(self.positions), heads + 2 * kv_heads, self.head_dim, generator=draw).half().to(self.device)
        )
        for row in self.broken:
            self.qkv[row] = float("nan")
        angles = torch.rand(max(map(len, self.tables)) * PAGE_TOKENS, self.head_dim // 2, generator=draw) * 6
        self.turns = torch.stack((angles.cos(), angles.sin()), dim=-1).to(self.device)
        most = max(len(self.positions), 8)
        self.scratch = AttentionScratch(heads, kv_heads, self.head_dim, self.splits, self.device, rows=most)
        self.before = [part.clone() for part in self.stored()]

    def stored(self) -> list[Tensor]:
        parts = (self.pages.keys, self.pages.values, self.pages.key_scales, self.pages.value_scales)
        return [part for part in parts if part is not None]

    def run(self, rows: list[int], *, own: bool = True) -> Tensor:
        """What these come to in one launch, float16 `[rows, heads * head_dim]`; `own`: a page table each."""
        out = torch.full(
            (len(rows), self.heads[0] * self.head_dim), float("nan"), dtype=torch.float16, device=self.device
        )
        self.scratch.partial.fill_(float("nan"))
        tables = torch.tensor([self.tables[row] for row in rows], dtype=torch.int32, device=self.device)
        assert self.rules is not None
        job = self.kernels.attention(
            self.qkv[rows],
            out,
            pages=self.pages,
            page_table=tables if own else tables[0],
            position=torch.tensor([self.positions[row] for row in rows], dtype=torch.int32, device=self.device),
            turns=self.turns,
            rules=self.rules,
            scratch=self.scratch,
            least=self.least,
        )
        self.launch(job)
        assert not self.scratch.tickets.any()
        return out

    def check(self, *, own: bool = True) -> Tensor:
        """Together and alone the same bits, and what is stored as well; what they come to."""
        everyone = list(range(len(self.positions)))
        alone = torch.cat([self.run([row]) for row in everyone])
        stored = [part.clone() for part in self.stored()]
        for part, old in zip(self.stored(), self.before, strict=True):
            part.copy_(old)
        together = self.run(everyone, own=own)
        whole = [row for row in everyone if row not in self.broken]
        assert same(together[whole], alone[whole])
        assert all(map(same, self.stored(), stored))
        return together


def same(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
