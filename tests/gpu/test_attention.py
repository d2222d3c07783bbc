"""Decode attention against its definition. Outputs, scratch and unwritten pages are poisoned first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.job import Job
from exlchat.ext.kv_formats import CODES4, CODES8, FLOAT8, FLOAT16, KINDS, PAGE_TOKENS, decode, encode
from exlchat.ext.ops import Kernels
from tests.ext import reference_attention

BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
KIND_AND_DIM = [
    (kind, head_dim)
    for kind in ("fp16", "fp8", "q8", "q6", "q4")
    for head_dim in (64, 80, 96, 128, 256)
    if KINDS[kind].fits(head_dim)
]


@dataclass
class Case:
    """A new token behind `cached` random ones, whose pages stand in no order among others that are NaN."""

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    cached: int
    rules: AttentionRules | None = None
    rotary_dim: int | None = None
    splits: int = 16
    pages_first: bool = False

    def __post_init__(self) -> None:
        self.rules = self.rules or AttentionRules(self.head_dim**-0.5)
        used = self.cached // PAGE_TOKENS + 1
        self.page_table = torch.randperm(used + 3, device="cuda")[:used].to(torch.int32)
        self.pages = self._fill(used + 3)
        self.qkv = torch.randn(self.heads + 2 * self.kv_heads, self.head_dim, device="cuda").half()
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        angles = torch.rand(used * PAGE_TOKENS, rotary_dim // 2, device="cuda") * 6
        self.turns = torch.stack((angles.cos(), angles.sin()), dim=-1).contiguous()
        self.position = torch.tensor([self.cached], dtype=torch.int32, device="cuda")
        device = self.qkv.device
        self.scratch = AttentionScratch(self.heads, self.kv_heads, self.head_dim, self.splits, device)
        self.scratch.partial.fill_(float("nan"))
        self.out = torch.full((self.heads * self.head_dim,), float("nan"), dtype=torch.float16, device="cuda")

    def _fill(self, count: int) -> LayerPages:
        kind, token = KINDS[self.kind], torch.arange(self.cached, device="cuda")
        tensors: list[torch.Tensor | None] = []
        for element in (kind.key, kind.value):
            rows = torch.randn(self.kv_heads, self.cached, self.head_dim, device="cuda").half()
            for part in encode(rows, element):
                if part is None:
                    tensors.append(None)
                    continue
                lead = (count, self.kv_heads) if self.pages_first else (self.kv_heads, count)
                store = torch.empty(*lead, PAGE_TOKENS, part.shape[-1], dtype=part.dtype, device="cuda")
                store.view(torch.uint8).fill_(0xFF)
                store = store.transpose(0, 1) if self.pages_first else store
                store[:, self.page_table.long()[token // PAGE_TOKENS], token % PAGE_TOKENS] = part
                tensors.append(store)
        keys, key_scales, values, value_scales = tensors
        assert keys is not None
        assert values is not None
        return LayerPages(kind, keys, values, key_scales, value_scales)

    def job(self, kernels: Kernels, scatter: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Job:
        assert self.rules is not None
        return kernels.attention(
            self.qkv,
            self.out if out is None else out,
            pages=self.pages,
            page_table=self.page_table,
            position=self.position,
            turns=self.turns,
            rules=self.rules,
            scratch=self.scratch,
            scatter=scatter,
        )

    def wanted(self) -> tuple[torch.Tensor, LayerPages]:
        """What the definition gives, and the pages as it leaves them."""
        assert self.rules is not None
        scales = [None if s is None else s.clone() for s in (self.pages.key_scales, self.pages.value_scales)]
        pages = LayerPages(self.pages.kind, self.pages.keys.clone(), self.pages.values.clone(), *scales)
        mixed = reference_attention.attention(
            self.qkv,
            pages=pages,
            page_table=self.page_table,
            position=self.cached,
            turns=self.turns,
            rules=self.rules,
        )
        return mixed.flatten(), pages

    def new_row(self, pages: LayerPages) -> list[torch.Tensor]:
        """The stored key and value of the new token as float32."""
        page, row = int(self.page_table[self.cached // PAGE_TOKENS]), self.cached % PAGE_TOKENS
        kind, found = pages.kind, []
        for store, scales, element in (
            (pages.keys, pages.key_scales, kind.key),
            (pages.values, pages.value_scales, kind.value),
        ):
            found.append(decode(store[:, page, row], None if scales is None else scales[:, page, row], element))
        return found


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def check(kernels: Kernels, case: Case, *, dependent: bool) -> None:
    """Twice, so that what the first run leaves behind (tickets, the stored token) is seen to do no harm."""
    mixed, pages = case.wanted()
    before = case.pages.keys.clone()
    job = case.job(kernels)
    for _ in range(2):
        case.out.fill_(float("nan"))
        job.launch(dependent=dependent)
        assert relative_error(case.out, mixed) < 2e-3, case.cached
    # A code may be rounded the other way where the two disagree in the last bit of float32: one step at most.
    step = {FLOAT16: 2e-3, FLOAT8: 0.5, CODES8: 0.04, CODES4: 0.6}
    elements = (pages.kind.key, pages.kind.value)
    for found, wanted, element in zip(case.new_row(case.pages), case.new_row(pages), elements, strict=True):
        assert (found - wanted).abs().max() < step[element]
        assert (found - wanted).square().mean().sqrt() < step[element] / 8
    page, row = int(case.page_table[case.cached // PAGE_TOKENS]), case.cached % PAGE_TOKENS
    changed = (case.pages.keys.contiguous().view(torch.uint8) != before.contiguous().view(torch.uint8)).flatten(3)
    assert not changed[:, page, :row].any()
    assert not changed[:, page, row + 1 :].any()
    assert changed.any(-1).sum() <= case.kv_heads


@BOTH_EDGES
@pytest.mark.parametrize(("kind", "head_dim"), KIND_AND_DIM)
@pytest.mark.parametrize("heads", [(8, 8), (8, 4), (32, 8), (10, 2), (16, 1)], ids=str)
def test_every_size(kernels: Kernels, kind: str, head_dim: int, heads: tuple[int, int], dependent: bool) -> None:
    for cached in (0, 1, 15, 16, 63, 255, 256, 777, 4001):
        check(kernels, Case(kind, *heads, head_dim, cached), dependent=dependent)


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q6", "q4"])
@pytest.mark.parametrize("splits", [1, 7, 16, 33, 64])
def test_long_contexts(kernels: Kernels, kind: str, splits: int) -> None:
    for cached in (2048, 16384, 16385):
        check(kernels, Case(kind, 32, 8, 128, cached, splits=splits), dependent=True)


@pytest.mark.parametrize("kind", ["fp16", "q4"])
@pytest.mark.parametrize("cached", [0, 5, 100, 999, 3000])
@pytest.mark.parametrize("window", [1, 16, 100, 1024])
def test_windows(kernels: Kernels, kind: str, cached: int, window: int) -> None:
    rules = AttentionRules(0.1, window=window)
    check(kernels, Case(kind, 8, 4, 64, cached, rules), dependent=False)


@pytest.mark.parametrize("kind", ["fp16", "q8", "q4"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (128, 64), (64, 16), (256, 0), (96, 32)])
def test_norms_softcap_and_partial_turns(kernels: Kernels, kind: str, head_dim: int, rotary_dim: int) -> None:
    weights = [(torch.rand(head_dim, device="cuda") * 2).half() for _ in range(2)]
    rules = AttentionRules(0.3, softcap=5.0, query_norm=weights[0], key_norm=weights[1], eps=1e-6)
    for cached in (0, 70, 900):
        check(kernels, Case(kind, 16, 4, head_dim, cached, rules, rotary_dim), dependent=False)


@BOTH_EDGES
@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q4"])
@pytest.mark.parametrize("norms", [False, True], ids=["plain heads", "normed heads"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(128, 128), (128, 64), (64, 64), (64, 16), (256, 256), (96, 24)])
def test_interleaved_turns(
    kernels: Kernels, kind: str, *, norms: bool, head_dim: int, rotary_dim: int, dependent: bool
) -> None:
    weights = [(torch.rand(head_dim, device="cuda") * 2).half() if norms else None for _ in range(2)]
    rules = AttentionRules(0.2, query_norm=weights[0], key_norm=weights[1], eps=1e-6, interleaved=True)
    for cached in (0, 70, 900):
        check(kernels, Case(kind, 16, 4, head_dim, cached, rules, rotary_dim), dependent=dependent)


def test_interleaved_turns_of_heads_of_80(kernels: Kernels) -> None:
    for rotary_dim in (80, 32, 4):
        rules = AttentionRules(0.2, interleaved=True)
        check(kernels, Case("fp16", 8, 8, 80, 300, rules, rotary_dim), dependent=False)


@BOTH_EDGES
@pytest.mark.parametrize(("kind", "head_dim"), [("fp16", 64), ("fp16", 128), ("fp8", 64), ("q8", 64), ("q4", 128)])
@pytest.mark.parametrize("heads", [(64, 8), (8, 8), (10, 2), (16, 1)], ids=str)
@pytest.mark.parametrize("window", [0, 128])
def test_sinks(
    kernels: Kernels, kind: str, head_dim: int, *, heads: tuple[int, int], window: int, dependent: bool
) -> None:
    sinks = torch.randn(heads[0], device="cuda") * 3
    rules = AttentionRules(head_dim**-0.5, window=window, sinks=sinks)
    for cached in (0, 1, 16, 100, 300, 4001):
        check(kernels, Case(kind, *heads, head_dim, cached, rules), dependent=dependent)


@pytest.mark.parametrize("splits", [1, 7, 64])
def test_sinks_of_long_contexts(kernels: Kernels, splits: int) -> None:
    for cached in (2048, 16385):
        rules = AttentionRules(0.3, sinks=torch.randn(32, device="cuda") * 3 + 4)
        check(kernels, Case("fp16", 32, 8, 128, cached, rules, splits=splits), dependent=True)


@pytest.mark.parametrize("cached", [0, 50, 5000])
def test_sinks_far_above_and_below_the_scores(kernels: Kernels, cached: int) -> None:
    sinks = torch.tensor([-1e4, -100.0, -20.0, 0.0, 3.0, 6.0, 8.0, 9.0], device="cuda")
    check(kernels, Case("fp16", 8, 4, 64, cached, AttentionRules(0.125, sinks=sinks)), dependent=False)
    case = Case("fp16", 8, 4, 64, cached, AttentionRules(0.125, sinks=torch.full((8,), 1e4, device="cuda")))
    case.job(kernels).launch(dependent=False)
    assert not case.out.any(), "a sink that far above takes the whole weight"


def test_sinks_do_not_go_through_the_softcap(kernels: Kernels) -> None:
    rules = AttentionRules(0.3, softcap=5.0, sinks=torch.linspace(-10, 10, 16, device="cuda"))
    for cached in (0, 70, 900):
        check(kernels, Case("fp16", 16, 4, 128, cached, rules), dependent=False)


def test_partial_turns_of_heads_of_80(kernels: Kernels) -> None:
    check(kernels, Case("fp16", 8, 8, 80, 300, rotary_dim=32), dependent=False)


@pytest.mark.parametrize("kind", ["fp16", "q6"])
def test_pages_may_lie_before_heads(kernels: Kernels, kind: str) -> None:
    check(kernels, Case(kind, 8, 4, 128, 1000, pages_first=True), dependent=False)


@pytest.mark.parametrize("cached", [40, 4000])
def test_the_output_is_scattered(kernels: Kernels, cached: int) -> None:
    case = Case("fp16", 32, 8, 128, cached)
    wanted, _ = case.wanted()
    places = torch.randperm(5000, device="cuda")[:4096]
    out = torch.full((5000,), -7.0, dtype=torch.float16, device="cuda")
    case.job(kernels, places.to(torch.int16), out).launch(dependent=False)
    assert relative_error(out[places], wanted) < 2e-3
    out[places] = -7.0
    assert bool((out == -7.0).all())


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q6", "q4"])
def test_a_hundred_runs_give_the_same_bits(kernels: Kernels, kind: str) -> None:
    case = Case(kind, 32, 8, 128, 5000)
    job = case.job(kernels)
    job.launch(dependent=False)
    first = case.out.clone()
    for _ in range(100):
        case.out.fill_(float("nan"))
        job.launch(dependent=True)
        assert torch.equal(case.out, first)


@pytest.mark.parametrize("kind", ["fp8", "q8", "q4"])
def test_large_and_zero_vectors_are_stored(kernels: Kernels, kind: str) -> None:
    for factor in (0.0, 1e-6, 3000.0):
        case = Case(kind, 8, 8, 128, 17)
        case.qkv *= factor
        _, pages = case.wanted()
        case.job(kernels).launch(dependent=False)
        for found, wanted in zip(case.new_row(case.pages), case.new_row(pages), strict=True):
            assert torch.isfinite(found).all()
            assert (found - wanted).norm() <= 0.05 * wanted.norm() + 1e-6
        assert torch.isfinite(case.out).all()
