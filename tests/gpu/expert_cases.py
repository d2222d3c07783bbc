"""Experts for the tests of routing and of products of chosen experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.expert_weights import DenseExperts
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.job import Job
from exlchat.ext.layout import NO_FEATURE, PackedMatrix, unsigned
from exlchat.ext.routing import RouteRules
from exlchat.ext.tiles import pack_tiles
from tests.ext import reference_experts

DEVICE = torch.device("cuda")
RECIPES = {
    **{str(bits): (Section(bits, 1.0, 128),) for bits in (2, 3, 4, 5, 6, 8)},
    "4 in groups of 32": (Section(4, 1.0, 32),),
    "8, 5, 4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "6, 5, 3, 2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
}
GPTQ = {"GPTQ 128": 128, "GPTQ 64": 64, "GPTQ 32": 32}
Expert = tuple[PackedMatrix, ...]
BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
HALF, FLOAT = torch.float16, torch.float32
# Rounding of x and of sums; a half that is stored adds its own.
FLOAT_ERROR, HALF_ERROR = 1e-3, 2e-3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def packed(features: int, outputs: int, recipe: str, *, empty: int = 0, bias: bool = False) -> PackedMatrix:
    """A matrix of weights and an input order of its own; `empty` stored rows of GPTQ take no feature."""
    one = _pattern(features, outputs, recipe, empty)
    shift = int(torch.randint(outputs // 16, (1,)))
    biases = randn(outputs).half() if bias else None
    words, scales = one.words.roll(shift, 0), one.scales.roll(shift, 0)
    return replace(one, words=words, scales=scales, gather=_own_order(one, empty), bias=biases)


@lru_cache(maxsize=4)
def _pattern(features: int, outputs: int, recipe: str, empty: int) -> PackedMatrix:
    """Quantizing takes its time: what a test needs many of has the column tiles of one, turned round."""
    if recipe in GPTQ:
        return _gptq(features, outputs, GPTQ[recipe], empty)
    return pack_exl2(quantize_matrix(randn(features, outputs) * 0.05, RECIPES[recipe]))


def _own_order(matrix: PackedMatrix, empty: int) -> Tensor:
    """Features anywhere among the stored rows; without `empty` ones, where there were some before."""
    rows = torch.randperm(matrix.stored, device=DEVICE)[: matrix.features]
    if not empty:
        rows = (unsigned(matrix.gather) != NO_FEATURE).nonzero().flatten()
    gather = torch.full((matrix.stored,), NO_FEATURE, device=DEVICE)
    gather[rows] = torch.randperm(matrix.features, device=DEVICE)
    return gather.to(torch.int32).to(torch.int16)


def _gptq(features: int, outputs: int, group: int, empty: int) -> PackedMatrix:
    """4-bit codes with float16 scales and zero points of their own."""
    stored = -(-(features + empty) // 32) * 32
    pieces = -(-stored // 128)
    section = layout.LayoutSection(4, "plain", group, 0, 0, pieces, 0, 0)
    count = pieces * 128 // group
    codes = torch.randint(16, (pieces * 128, outputs), device=DEVICE)
    scale = (torch.rand(count, outputs, device=DEVICE) * 0.01 + 0.001).half()
    zero = torch.randint(16, (count, outputs), device=DEVICE, dtype=torch.uint8)
    gather = torch.full((stored,), NO_FEATURE, device=DEVICE)
    gather[:features] = torch.arange(features, device=DEVICE)
    words, scales = pack_tiles(codes, 4), layout.plain_scales(scale, zero, section)
    return PackedMatrix(features, outputs, (section,), words, scales, gather.to(torch.int32).to(torch.int16))


def pairs(count: int, features: int, outputs: int, recipe: str, *, bias: bool = False, empty: int = 0) -> list[Expert]:
    """Gate and up of each expert, which read one order; that of each expert is another one."""
    found: list[Expert] = []
    for _ in range(count):
        gate = packed(features, outputs, recipe, bias=bias, empty=empty)
        up = packed(features, outputs, recipe, bias=bias, empty=empty)
        found.append((gate, replace(up, gather=gate.gather)))
    return found


def singles(
    count: int, features: int, outputs: int, recipe: str, *, bias: bool = False, empty: int = 0
) -> list[Expert]:
    return [(packed(features, outputs, recipe, bias=bias, empty=empty),) for _ in range(count)]


def error_of(found: Tensor, wanted: Tensor) -> float:
    """NaN, and so more than any bound, where something was not written."""
    return float((found.double() - wanted).norm() / wanted.norm())


def check_close(found: Tensor, wanted: Tensor, bound: float, case: object) -> None:
    """Row by row, so that the message says which slot is wrong."""
    errors = [error_of(a, b) for a, b in zip(found, wanted, strict=True)]
    assert all(error < bound for error in errors), f"{case}: relative errors of the slots {errors}, bound {bound}"


class Routed:
    """A route and where it writes."""

    def __init__(
        self, kernels: ExpertKernels, x: Tensor, router: Tensor, rules: RouteRules, bias: Tensor | None
    ) -> None:
        self.rules = rules
        tokens = len(x)
        self.logits = poisoned(tokens, len(router), dtype=FLOAT)
        self.chosen = torch.full((tokens, rules.slots), -1, dtype=torch.int32, device=DEVICE)
        self.weights = poisoned(tokens, rules.slots, dtype=FLOAT)
        self.tickets = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
        self.job: Job = kernels.route(
            x,
            router,
            rules,
            logits=self.logits,
            chosen=self.chosen,
            weights=self.weights,
            tickets=self.tickets,
            bias=bias,
        )

    def check(self, x: Tensor, router: Tensor, bias: Tensor | None, case: object) -> None:
        logits, _, _ = reference_experts.route(x, router, self.rules, bias=bias)
        off = float((self.logits.double() - logits).norm())
        # A single logit may be near zero, where only the size of what was added up says how exact it can be.
        most = 1e-5 * float(logits.norm()) + 2**-24 * float(x.double().norm() * router.double().norm())
        assert off <= most, f"{case}: logits off by {off:.2e}"
        # Chosen among the logits as they were rounded.
        found = [reference_experts.choose(row, self.rules) for row in self.logits]
        chosen, weights = (torch.stack(parts) for parts in zip(*found, strict=True))
        assert self.chosen.tolist() == chosen.tolist(), f"{case}: chosen"
        worst = float((self.weights - weights).abs().max() / weights.abs().max())
        assert worst < 1e-5, f"{case}: weights {self.weights.tolist()}, wanted {weights.tolist()}"
        assert not self.tickets.any(), f"{case}: tickets are left at {self.tickets.tolist()}"


def dense(
    count: int, inputs: int, outputs: int, *, matrices: int, bias: bool = False, fused: bool = False
) -> DenseExperts:
    size = inputs**-0.5
    if fused:
        both = (randn(count, matrices, outputs, inputs) * size).half()
        weights: Sequence[Tensor] = both.unbind(1)
    else:
        weights = [(randn(count, outputs, inputs) * size).half() for _ in range(matrices)]
    biases = tuple(randn(count, outputs).half() for _ in range(matrices)) if bias else ()
    return DenseExperts(tuple(weights), biases)
