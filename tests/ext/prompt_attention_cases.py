"""Chunks of prompts through the kernel, against torch's own attention in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.attention import AttentionRules, LayerPages
from exlchat.ext.job import Job
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS
from exlchat.ext.prompt_attention import PromptAttention, PromptScratch

UNTOUCHED = 7.0
CASES = {
    "the first tokens": (0, 20, 32, {}),
    "one token": (300, 1, 16, {}),
    "a whole chunk": (190, 64, 64, {}),
    "over the end of a page": (500, 50, 64, {}),
    "a window": (600, 40, 48, {"window": 100}),
    "a window of one token": (70, 20, 32, {"window": 1}),
    "a window longer than all": (70, 20, 32, {"window": 500}),
    "a softcap": (280, 33, 48, {"softcap": 3.0}),
    "sinks": (280, 33, 48, {"sinks": True}),
    "sinks, all by one block": (10, 33, 48, {"sinks": True}),
}
"""Tokens before, new ones, rows of the chunk, and what beside the plain sum."""


class Chunk:
    """Tokens `start` and on of a sequence of random heads; what is before them is cached, all else is no number."""

    def __init__(
        self,
        device: torch.device,
        start: int,
        tokens: int,
        rows: int,
        *,
        heads: tuple[int, int] = (8, 2),
        head_dim: int = 64,
        processors: int = 16,
        window: int = 0,
        softcap: float = 0.0,
        sinks: bool = False,
    ) -> None:
        self.start, self.tokens = start, tokens
        self.heads, self.kv_heads = heads
        generator = torch.Generator().manual_seed(start + tokens)
        random = torch.randn(start + tokens, self.heads + 2 * self.kv_heads, head_dim, generator=generator)
        self.known = random.half().to(device)
        shape = (self.kv_heads, (start + tokens) // PAGE_TOKENS + 3, PAGE_TOKENS, head_dim)
        keys, values = (torch.full(shape, torch.nan, dtype=torch.float16, device=device) for _ in range(2))
        self.pages = LayerPages(KINDS["fp16"], keys, values)
        order = torch.randperm(shape[1], generator=generator)[: (start + tokens) // PAGE_TOKENS + 1]
        self.table = order.int().to(device)
        for part, cached in zip((keys, values), self._cached(start), strict=True):
            self._put(part, cached)
        self.rules = AttentionRules(
            head_dim**-0.5,
            window,
            softcap,
            sinks=torch.randn(self.heads, generator=generator).to(device) if sinks else None,
        )
        self.qkv = torch.full((rows, *random.shape[1:]), torch.nan, dtype=torch.float16, device=device)
        self.qkv[:tokens] = self.known[start:]
        self.place = torch.tensor([start, tokens], dtype=torch.int32, device=device)
        self.out = torch.full((rows, self.heads * head_dim), UNTOUCHED, dtype=torch.float16, device=device)
        self.scratch = PromptScratch(self.heads, self.kv_heads, head_dim, rows, device, processors=processors)

    def check(self, kernels: PromptAttention, launch: Callable[[Job], None]) -> None:
        job = kernels.prompt_attention(
            self.qkv,
            self.out,
            pages=self.pages,
            page_table=self.table,
            place=self.place,
            rules=self.rules,
            scratch=self.scratch,
        )
        launch(job)
        out = self.out.view(len(self.out), self.heads, -1)
        assert bool((out[self.tokens :] == UNTOUCHED).all())
        torch.testing.assert_close(out[: self.tokens].double(), self.wanted(), atol=2e-3, rtol=2e-3)
        length = self.start + self.tokens
        for part, wanted in zip((self.pages.keys, self.pages.values), self._cached(length), strict=True):
            assert torch.equal(self._stored(part)[:, :length], wanted)
            assert int(part.isfinite().sum()) == wanted.numel()
        first = self.out.clone()
        launch(job)
        assert torch.equal(first, self.out)

    def wanted(self) -> Tensor:
        """`[tokens, heads, head_dim]`."""
        length, group = self.start + self.tokens, self.heads // self.kv_heads
        queries = self.known[self.start :, : self.heads].transpose(0, 1).double()
        keys, values = (cached.double().repeat_interleave(group, 0) for cached in self._cached(length))
        ages = torch.arange(self.start, length).view(-1, 1) - torch.arange(length)
        seen = (ages >= 0) & (ages < (self.rules.window or length))
        mask = torch.where(seen, 0.0, -torch.inf).double().to(keys.device)
        if not self.rules.softcap and self.rules.sinks is None:
            mixed = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=self.rules.scale
            )
            return mixed.transpose(0, 1)
        scores = queries @ keys.transpose(1, 2) * self.rules.scale
        if cap := self.rules.softcap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores + mask
        if self.rules.sinks is not None:
            # A sink is as a token whose value is zero.
            sinks = self.rules.sinks.double().view(-1, 1, 1).expand(-1, self.tokens, 1)
            scores, values = torch.cat((scores, sinks), 2), functional.pad(values, (0, 0, 0, 1))
        return (scores.softmax(-1) @ values).transpose(0, 1)

    def _cached(self, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values, `[kv_heads, length, head_dim]`."""
        keys, values = self.known[:length, self.heads :].transpose(0, 1).split(self.kv_heads)
        return keys, values

    def _stored(self, part: Tensor) -> Tensor:
        """`[kv_heads, tokens of its pages, head_dim]`, a copy."""
        return part[:, self.table.long()].flatten(1, 2)

    def _put(self, part: Tensor, cached: Tensor) -> None:
        for token in range(cached.shape[1]):
            part[:, int(self.table[token // PAGE_TOKENS]), token % PAGE_TOKENS] = cached[:, token]
