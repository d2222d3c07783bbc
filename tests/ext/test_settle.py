"""What `settle` and `norm_heads` refuse, and their definitions against the layers of transformers. No GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from exlchat.ext.heads import HeadKernels, HeadNorms
from exlchat.ext.library import Library
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy, SettleKernels
from tests.ext import reference_heads, reference_settle
from tests.ext.never_called import NeverCalled

HALF, FLOAT = torch.float16, torch.float32
WIDTH = 64


@pytest.fixture
def kernels() -> SettleKernels:
    return SettleKernels(cast(Library, NeverCalled()))


@pytest.fixture
def heads() -> HeadKernels:
    return HeadKernels(cast(Library, NeverCalled()))


def row(count: int = 1, width: int = WIDTH, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(count, width).to(dtype)


def ones(width: int = WIDTH, dtype: torch.dtype = HALF) -> Tensor:
    return torch.ones(width, dtype=dtype)


NORM = KernelNorm(ones(), 1e-5)


@pytest.mark.parametrize(
    ("hidden", "copies", "norm", "joining", "words"),
    [
        (row(), [], NORM, None, "hidden is on the cpu"),
        (row(), [NormedCopy(row(dtype=HALF))], None, Joining(y=row(17)), "hidden is on the cpu"),
        (row(width=72), [], NORM, None, "hidden has 72 numbers"),
        (row(width=16400), [], NORM, None, "hidden has 16400 numbers"),
        (row(dtype=HALF), [], NORM, None, "hidden is torch.float16 (1, 64)"),
        (row(2), [], NORM, None, "hidden is on the cpu"),
        (row(9), [], NORM, None, "hidden has 9 rows"),
        (row(), [], KernelNorm(ones(63), 1e-5), None, "norm is torch.float16 (63,)"),
        (row(), [], KernelNorm(ones(dtype=FLOAT), 1e-5), None, "norm is torch.float32"),
        (row(), [], KernelNorm(ones(), 1e-5, "layer", ones(63)), None, "norm's bias is torch.float16 (63,)"),
        (row(), [NormedCopy(row(dtype=HALF))] * 4, NORM, None, "4 copies"),
        (row(), [NormedCopy(row())], NORM, None, "x is torch.float32"),
        (row(), [NormedCopy(row(width=96, dtype=HALF))], NORM, None, "x is torch.float16 (1, 96)"),
        (row(), [NormedCopy(row(dtype=HALF), ones())], NORM, None, "scatter is torch.float16"),
        (row(), [], NORM, Joining(), "neither y nor added"),
        (row(), [], NORM, Joining(weights=ones(2, FLOAT)), "neither y nor added"),
        (row(), [], NORM, Joining(y=row(18)), "y has 18 slots"),
        (row(2), [], NORM, Joining(y=row(5)), "y has 5 slots of 2 rows"),
        (row(), [], NORM, Joining(y=row(2, 32)), "y is torch.float32 (2, 32)"),
        (row(), [], NORM, Joining(y=row().double()), "y is torch.float64"),
        (row(), [], NORM, Joining(y=row(2), weights=ones(3, FLOAT)), "weights is torch.float32 (3,)"),
        (row(), [], NORM, Joining(y=row(2), weights=ones(2)), "weights is torch.float16 (2,)"),
        (row(), [], NORM, Joining(added=row(2)), "added is torch.float32 (2, 64)"),
        (row(), [], NORM, Joining(y=row(), gate=ones(1, FLOAT)), "gate belongs to what is added"),
        (row(), [], NORM, Joining(added=row(), gate=ones(2, FLOAT)), "gate is torch.float32 (2,)"),
        (row(), [], NORM, Joining(y=row(), norm=KernelNorm(ones(), 1e-5, "layer")), "is an RMS norm without bias"),
        (row(), [], NORM, Joining(y=row(), norm=KernelNorm(ones(63), 1e-5)), "post norm is torch.float16 (63,)"),
        (row(), [], NORM, Joining(y=row().to("meta")), "hidden is on the cpu"),
    ],
)
def test_settle_names_the_tensor_that_does_not_fit(
    kernels: SettleKernels,
    *,
    hidden: Tensor,
    copies: Sequence[NormedCopy],
    norm: KernelNorm | None,
    joining: Joining | None,
    words: str,
) -> None:
    with pytest.raises(ValueError) as error:
        kernels.settle(hidden, copies, norm=norm, joining=joining)
    assert words in str(error.value)


def test_copies_are_normed_and_in_the_order_of_their_products() -> None:
    hidden, y = row(), row()
    weight, bias = torch.rand(WIDTH).half(), torch.randn(WIDTH).half()
    order = torch.randperm(80)[:WIDTH]
    copies = [NormedCopy(torch.zeros(1, 80).half(), order.to(torch.int16)), NormedCopy(row(dtype=HALF))]
    wanted_hidden = hidden + 0.22 * y
    layer = torch.nn.LayerNorm(WIDTH, eps=1e-5)
    layer.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    norm = KernelNorm(weight, 1e-5, "layer", bias)
    reference_settle.settle(hidden, copies, norm=norm, joining=Joining(y=y, multiplier=0.22))
    assert torch.allclose(hidden, wanted_hidden, atol=1e-6)
    wanted = layer(wanted_hidden).detach()
    assert torch.allclose(copies[0].x[:, order].float(), wanted, atol=2e-3)
    assert torch.allclose(copies[1].x.float(), wanted, atol=2e-3)
    unused = torch.ones(80, dtype=torch.bool)
    unused[order] = False
    assert not copies[0].x[:, unused].any()


def test_a_norm_behind_is_of_the_sum_and_without_a_norm_the_residual_itself_is_copied() -> None:
    hidden, y, added = row(), row(3), row()
    before, weights, gate = hidden.clone(), torch.rand(1, 3), torch.randn(1)
    weight = torch.rand(WIDTH).half()
    joining = Joining(y, weights, added, gate, KernelNorm(weight, 1e-6), 1.0)
    copy = NormedCopy(row(dtype=HALF))
    reference_settle.settle(hidden, [copy], norm=None, joining=joining)
    total = (weights.view(3, 1) * y).sum(0) + torch.sigmoid(gate) * added
    norm = Olmo2RMSNorm(WIDTH, eps=1e-6)
    norm.load_state_dict({"weight": weight.float()})
    assert torch.allclose(hidden, before + norm(total).detach(), atol=1e-5)
    assert torch.equal(copy.x, hidden.half())


def test_without_a_source_the_residual_stays() -> None:
    hidden, copy = row(), NormedCopy(row(dtype=HALF))
    before = hidden.clone()
    reference_settle.settle(hidden, [copy], norm=NORM)
    assert torch.equal(hidden, before)
    wanted = before * torch.rsqrt(before.square().mean() + 1e-5)
    assert torch.allclose(copy.x.float(), wanted, atol=2e-3)


def qkv(heads: int = 4, kv_heads: int = 2, head_dim: int = 16) -> Tensor:
    return torch.randn(1, heads + 2 * kv_heads, head_dim).half()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "qkv is on the cpu"),
        ({"kv_heads": 4}, "qkv has 8 heads"),
        ({"kv_heads": 0}, "qkv has 8 heads"),
        ({"qkv": qkv().expand(9, -1, -1)}, "qkv has 9 rows"),
        ({"qkv": qkv().float()}, "qkv is torch.float32"),
        ({"qkv": qkv(head_dim=12)}, "heads of 12 elements"),
        ({"qkv": qkv(head_dim=264)}, "heads of 264 elements"),
        ({"qkv": qkv(heads=129, head_dim=128), "kind": "rms_together"}, "129 heads of 128 elements"),
        ({"query": None, "key": None}, "neither queries nor keys"),
        ({"query": torch.ones(16).half()}, "query norm is torch.float16 (16,)"),
        ({"key": torch.ones(2, 16)}, "key norm is torch.float32 (2, 16)"),
    ],
)
def test_norm_heads_names_the_tensor_that_does_not_fit(heads: HeadKernels, given: dict[str, Any], words: str) -> None:
    given = {"query": torch.ones(4, 16).half(), "key": torch.ones(2, 16).half(), "kind": "layer", **given}
    norms = HeadNorms(given["kind"], given["query"], given["key"], 1e-5)
    with pytest.raises(ValueError) as error:
        heads.norm_heads(given.get("qkv", qkv()), norms, kv_heads=given.get("kv_heads", 2))
    assert words in str(error.value)


def test_layer_norms_of_heads_are_those_of_cohere() -> None:
    x = qkv()
    before = x.clone().float()
    weights = [torch.rand(4, 16).half(), torch.rand(2, 16).half()]
    reference_heads.norm_heads(x, HeadNorms("layer", *weights, 1e-5), kv_heads=2)
    for rows, weight in ((slice(0, 4), weights[0]), (slice(4, 6), weights[1])):
        norm = CohereLayerNorm(hidden_size=tuple(weight.shape), eps=1e-5)
        norm.load_state_dict({"weight": weight.float()})
        assert torch.allclose(x[0, rows].float(), norm(before[0, rows]).detach(), atol=2e-3)
    assert torch.equal(x[:, 6:].float(), before[:, 6:])


def test_norms_of_all_heads_together_are_those_of_olmo() -> None:
    x = qkv()
    before = x.clone().float()
    weights = [torch.rand(4, 16).half(), torch.rand(2, 16).half()]
    reference_heads.norm_heads(x, HeadNorms("rms_together", *weights, 1e-6), kv_heads=2)
    for rows, weight in ((slice(0, 4), weights[0]), (slice(4, 6), weights[1])):
        norm = Olmo2RMSNorm(weight.numel(), eps=1e-6)
        norm.load_state_dict({"weight": weight.float().flatten()})
        assert torch.allclose(x[0, rows].float().flatten(), norm(before[0, rows].flatten()).detach(), atol=2e-3)
    assert torch.equal(x[:, 6:].float(), before[:, 6:])
