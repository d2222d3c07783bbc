"""The CUDA kernels against their references. Outputs are poisoned first, so that what is not written shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exlchat.engine.formats.exl2 import dequantize
from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.ext import reference
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels, Norm

RECIPES = {
    **{str(bits): (Section(bits, 1.0, 128),) for bits in (2, 3, 4, 5, 6, 8)},
    "4 in groups of 32": (Section(4, 1.0, 32),),
    "6 in groups of 64": (Section(6, 1.0, 64),),
    "8, 5, 4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "6, 5, 3, 2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
}
BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    folder: Path = tmp_path_factory.mktemp("ext")
    return Kernels(open_library(ensure_library(folder), FUNCTIONS))


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def packed(features: int, outputs: int, recipe: str) -> tuple[PackedMatrix, dict[str, torch.Tensor]]:
    tensors = quantize_matrix(torch.randn(features, outputs, device="cuda") * 0.05, RECIPES[recipe])
    return pack_exl2(tensors), tensors


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("features", "outputs"), [(128, 32), (800, 96), (4096, 1024), (1536, 160)])
def test_products_and_weights(kernels: Kernels, recipe: str, features: int, outputs: int) -> None:
    matrix, tensors = packed(features, outputs, recipe)
    weights = poisoned(features, outputs, dtype=torch.float16)
    kernels.dequantize(matrix, weights)
    assert torch.equal(weights, dequantize(tensors))
    for rows in (1, 2, 5, 8):
        x = torch.randn(rows, features, device="cuda").half()
        wanted = reference.gemv([matrix], x)
        results = []
        for dependent in (False, True):
            y = poisoned(rows, outputs, dtype=torch.float32)
            kernels.gemv([matrix], x, y, "float").launch(dependent=dependent)
            results.append(y)
        assert relative_error(results[0], wanted) < 1e-3
        assert torch.equal(results[0], results[1])


def test_a_hundred_runs_give_the_same_bits(kernels: Kernels) -> None:
    matrix, _ = packed(4096, 512, "8, 5, 4")
    x = torch.randn(1, 4096, device="cuda").half()
    first = poisoned(1, 512, dtype=torch.float32)
    kernels.gemv([matrix], x, first, "float").launch(dependent=False)
    for _ in range(100):
        again = poisoned(1, 512, dtype=torch.float32)
        kernels.gemv([matrix], x, again, "float").launch(dependent=True)
        assert torch.equal(again, first)


@BOTH_EDGES
def test_norm_gate_and_residual(kernels: Kernels, dependent: bool) -> None:
    gate, _ = packed(1024, 512, "8, 5, 4")
    up, _ = packed(1024, 512, "4")
    hidden = torch.randn(1, 1024, device="cuda")
    norm = Norm((torch.randn(1024, device="cuda") * 0.1 + 1).half(), 1e-5)
    x = reference.normed(hidden, norm.weight, norm.eps)
    product = poisoned(1, 512, dtype=torch.float16)
    kernels.gemv([gate, up], hidden, product, "gated", norm=norm).launch(dependent=dependent)
    assert relative_error(product, reference.gated([gate, up], x)) < 2e-3
    both = poisoned(1, 1024, dtype=torch.float16)
    kernels.gemv([gate, up], hidden, both, "half", norm=norm).launch(dependent=dependent)
    assert relative_error(both, reference.gemv([gate, up], x)) < 2e-3
    residual = torch.randn(1, 512, device="cuda")
    wanted = residual.double() + reference.gemv([gate], x)
    kernels.gemv([gate], x, residual, "add").launch(dependent=dependent)
    assert relative_error(residual, wanted) < 1e-3


@BOTH_EDGES
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 4), (32, 8), (12, 4), (16, 1)])
def test_attention(kernels: Kernels, heads: int, kv_heads: int, head_dim: int, dependent: bool) -> None:
    for cached in (0, 1, 63, 64, 777, 4001):
        capacity = cached + 1
        angles = torch.rand(capacity, head_dim // 2, device="cuda") * 6
        turns = torch.stack((angles.cos(), angles.sin()), dim=-1).contiguous()
        qkv = torch.randn(heads + 2 * kv_heads, head_dim, device="cuda").half()
        keys, values = (torch.randn(kv_heads, capacity, head_dim, device="cuda").half() for _ in range(2))
        other_keys, other_values = keys.clone(), values.clone()
        wanted = reference.attention(qkv, turns=turns, position=cached, keys=other_keys, values=other_values)
        out = poisoned(heads, head_dim, dtype=torch.float16)
        position = torch.tensor([cached], dtype=torch.int32, device="cuda")
        job = kernels.attention(qkv, out, turns=turns, position=position, keys=keys, values=values, splits=16)
        for _ in range(2):
            job.launch(dependent=dependent)
        assert relative_error(out, wanted) < 2e-3, cached
        assert torch.equal(values, other_values)
        assert torch.allclose(keys.float(), other_keys.float(), atol=2e-3, rtol=1e-3)


@BOTH_EDGES
def test_embedding(kernels: Kernels, dependent: bool) -> None:
    table = torch.randn(50, 320, device="cuda").half()
    token = torch.tensor([37], device="cuda")
    hidden = poisoned(1, 320, dtype=torch.float32)
    kernels.embed(table, token, hidden, dependent=dependent)
    assert torch.equal(hidden, reference.embed(table, token))


@pytest.mark.parametrize("wrong", [lambda t: t.cpu(), lambda t: t.float(), lambda t: t[:, ::2]])
def test_wrong_tensors_are_refused(kernels: Kernels, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    matrix, _ = packed(128, 32, "4")
    x = torch.zeros(1, 128, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="x is"):
        kernels.gemv([matrix], wrong(x), poisoned(1, 32, dtype=torch.float16), "half")
