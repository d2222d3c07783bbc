"""What stands between the products, and experts: rows together are each what they are alone, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from exlchat.ext.expert_weights import ExpertMatrices
from exlchat.ext.heads import HeadNormKind, HeadNorms
from exlchat.ext.ops import Kernels
from exlchat.ext.routing import RouteRules
from exlchat.ext.settle import Joining, NormedCopy
from tests.ext import reference
from tests.gpu.expert_cases import dense, pairs, singles
from tests.gpu.test_rows import BOTH_EDGES, same_bits
from tests.gpu.test_settle import FLOAT, HALF, WIDTHS, a_norm, check, numbers, weights_of

ROWS = 8


def joining_of(kind: str, width: int) -> Joining:
    """Of eight rows."""
    logits = numbers(ROWS, 9)
    return {
        "half": Joining(numbers(ROWS, width, dtype=HALF)),
        "norm behind": Joining(numbers(ROWS, width), norm=a_norm(width)),
        "parallel": Joining(numbers(ROWS, width), added=numbers(ROWS, width, dtype=HALF), multiplier=0.22),
        "experts": Joining(
            numbers(ROWS * 5, width),
            torch.rand(ROWS, 5, device="cuda"),
            numbers(ROWS, width),
            logits[:, 8],
            a_norm(width),
        ),
    }[kind]


@BOTH_EDGES
@pytest.mark.parametrize("kind", ["half", "norm behind", "parallel", "experts"])
@pytest.mark.parametrize("width", WIDTHS)
def test_settled_rows(kernels: Kernels, width: int, kind: str, dependent: bool) -> None:
    joining, norm, hidden = joining_of(kind, width), a_norm(width, "layer", bias=True), numbers(ROWS, width)
    stored = width + 32
    scatter = torch.randperm(stored, device="cuda")[:width].to(torch.int32).to(torch.int16)
    slots = 1 if joining.y is None else len(joining.y) // ROWS

    def settled(first: int, rows: int) -> list[Tensor]:
        part = slice(first, first + rows)
        mine = replace(
            joining,
            y=None if joining.y is None else joining.y[first * slots : (first + rows) * slots],
            weights=None if joining.weights is None else joining.weights[part],
            added=None if joining.added is None else joining.added[part],
            gate=None if joining.gate is None else joining.gate[part],
        )
        stream = hidden[part].clone()
        copies = [
            NormedCopy(torch.zeros(rows, stored, dtype=HALF, device="cuda"), scatter),
            NormedCopy(torch.zeros(rows, width, dtype=HALF, device="cuda")),
        ]
        kernels.settle(stream, copies, norm=norm, joining=mine).launch(dependent=dependent)
        return [stream, copies[0].x, copies[1].x]

    alone = [torch.cat(parts) for parts in zip(*(settled(row, 1) for row in range(ROWS)), strict=True)]
    for rows in range(2, ROWS + 1):
        found = settled(0, rows)
        assert all(same_bits(one, other[:rows]) for one, other in zip(found, alone, strict=True)), f"{rows} rows"
    # And what they come to is right.
    check(kernels, kind, hidden, norm, joining, orders=(32, None), dependent=dependent)


@BOTH_EDGES
@pytest.mark.parametrize("kind", ["layer", "rms_together"])
@pytest.mark.parametrize("heads", [(8, 8, 64), (40, 40, 128), (64, 8, 128), (16, 8, 256), (3, 1, 8)], ids=str)
def test_heads_of_rows(kernels: Kernels, kind: HeadNormKind, heads: tuple[int, int, int], dependent: bool) -> None:
    count, kv_heads, head_dim = heads
    before = numbers(ROWS, count + 2 * kv_heads, head_dim, dtype=HALF)
    query, key = (weights_of(many * head_dim).view(many, head_dim) for many in (count, kv_heads))

    def normed(part: slice) -> Tensor:
        qkv = before[part].clone()
        kernels.norm_heads(qkv, HeadNorms(kind, query, key, 1e-5), kv_heads=kv_heads).launch(dependent=dependent)
        return qkv

    alone = torch.cat([normed(slice(row, row + 1)) for row in range(ROWS)])
    assert not same_bits(alone, before)
    for rows in range(2, ROWS + 1):
        assert same_bits(normed(slice(0, rows)), alone[:rows]), f"{rows} rows"


@pytest.mark.parametrize("vocab", [3, 1025, 32003, 256000])
def test_logits_of_rows(kernels: Kernels, vocab: int) -> None:
    before = numbers(ROWS, vocab, scale=40.0)

    def scaled(part: slice) -> Tensor:
        logits = before[part].clone()
        kernels.scale_logits(logits, scale=0.25, softcap=30.0).launch(dependent=True)
        return logits

    alone = torch.cat([scaled(slice(row, row + 1)) for row in range(ROWS)])
    for rows in range(2, ROWS + 1):
        assert same_bits(scaled(slice(0, rows)), alone[:rows]), f"{rows} rows"


@BOTH_EDGES
@pytest.mark.parametrize(("width", "outputs"), [(32, 1), (96, 50), (3584, 32003), (16384, 100)])
def test_heads_in_float16_behind_a_settled_row(kernels: Kernels, width: int, outputs: int, dependent: bool) -> None:
    weight, x = (numbers(outputs, width) * 0.05).half(), numbers(ROWS, width, dtype=HALF)

    def multiplied(part: slice) -> Tensor:
        y = torch.full((len(x[part]), outputs), float("nan"), device="cuda")
        kernels.head_product(weight, x[part], y).launch(dependent=dependent)
        return y

    alone = torch.cat([multiplied(slice(row, row + 1)) for row in range(ROWS)])
    wanted = reference.head_product(weight, x)
    assert float((alone - wanted).norm() / wanted.norm()) < 2e-5
    for rows in range(2, ROWS + 1):
        assert same_bits(multiplied(slice(0, rows)), alone[:rows]), f"{rows} rows"


@BOTH_EDGES
@pytest.mark.parametrize(("experts", "slots"), [(8, 2), (60, 4), (128, 8), (512, 16)])
@pytest.mark.parametrize("quantized", [True, False], ids=["quantized", "dense"])
def test_experts_of_rows(kernels: Kernels, experts: int, slots: int, quantized: bool, dependent: bool) -> None:
    """Choice and products of all tokens; few experts stand for many, so that some are chosen by several tokens."""
    few, hidden, inner = 6, 512, 352
    x, router = numbers(ROWS, hidden, dtype=HALF), (numbers(experts + 1, hidden) * 0.1).half()
    if quantized:
        downs = ExpertMatrices(singles(few, inner, hidden, "8, 5, 4"))
        gates = ExpertMatrices(pairs(few, hidden, inner, "8, 5, 4"), into=downs)
    else:
        dense_gates, dense_downs = dense(few, hidden, inner, matrices=2), dense(few, inner, hidden, matrices=1)

    def mixed(first: int, rows: int) -> list[Tensor]:
        mine = x[first : first + rows]
        logits = torch.full((rows, experts + 1), float("nan"), device="cuda")
        chosen = torch.full((rows, slots), -1, dtype=torch.int32, device="cuda")
        weights = torch.full((rows, slots), float("nan"), device="cuda")
        tickets = torch.zeros(rows, dtype=torch.int32, device="cuda")
        kernels.route(
            mine,
            router,
            RouteRules(experts, slots, renormalised=True),
            logits=logits,
            chosen=chosen,
            weights=weights,
            tickets=tickets,
        ).launch(dependent=dependent)
        number = chosen % few
        y = torch.full((rows * slots, hidden), float("nan"), dtype=FLOAT, device="cuda")
        if quantized:
            between = torch.zeros(rows * slots, downs.stored, dtype=HALF, device="cuda")
            jobs = (
                kernels.expert_product(gates, number, mine, between, "gated"),
                kernels.expert_product(downs, number, between, y, "float", order="stored"),
            )
        else:
            between = torch.zeros(rows * slots, inner, dtype=HALF, device="cuda")
            jobs = (
                kernels.dense_expert_product(dense_gates, number, mine, between, "gated"),
                kernels.dense_expert_product(dense_downs, number, between, y, "float"),
            )
        for job in jobs:
            job.launch(dependent=dependent)
        assert not tickets.any()
        return [logits, chosen, weights, between.view(rows, -1), y.view(rows, -1)]

    alone = [torch.cat(parts) for parts in zip(*(mixed(row, 1) for row in range(ROWS)), strict=True)]
    assert not any(bool(part.isnan().any()) for part in alone)
    for rows in range(2, ROWS + 1):
        for name, found, wanted in zip(
            ("logits", "chosen", "weights", "between", "y"), mixed(0, rows), alone, strict=True
        ):
            assert same_bits(found, wanted[:rows]), f"{name} of {rows} rows"
