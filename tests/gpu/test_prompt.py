"""The operations between the products of a prompt, against their references."""

from __future__ import annotations

import pytest
import torch

from exlchat.ext.ops import Kernels
from exlchat.ext.products import Activation
from tests.ext import reference_prompt


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert not found.isnan().any()
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("rows", [1, 7, 2048])
@pytest.mark.parametrize("width", [64, 260, 4096, 16384])
def test_add_norm(kernels: Kernels, rows: int, width: int) -> None:
    hidden, added = torch.randn(rows, width, device="cuda") * 3, torch.randn(rows, width, device="cuda").half()
    weight = (torch.randn(width, device="cuda") * 0.2 + 1).half()
    other = hidden.clone()
    assert (
        relative_error(
            kernels.add_norm(hidden, None, weight, 1e-5), reference_prompt.add_norm(other, None, weight, 1e-5)
        )
        < 1e-3
    )
    assert torch.equal(hidden, other)
    found = kernels.add_norm(hidden, added, weight, 1e-5)
    assert relative_error(found, reference_prompt.add_norm(other, added, weight, 1e-5)) < 1e-3
    assert torch.equal(hidden, other)
    if width % 8 == 0:
        permutation = torch.randperm(width, device="cuda")
        permuted = kernels.add_norm(hidden, None, weight, 1e-5, permutation=permutation.short())
        assert torch.equal(permuted[:, permutation], kernels.add_norm(hidden, None, weight, 1e-5))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("rows", [1, 7, 2048])
@pytest.mark.parametrize("inner", [8, 200, 14336])
def test_gate(kernels: Kernels, rows: int, inner: int, activation: Activation) -> None:
    x = torch.randn(rows, 2 * inner, device="cuda").half() * 4
    assert relative_error(kernels.gate(x, activation), reference_prompt.gate(x, activation)) < 1e-3


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
def test_gate_of_extremes(kernels: Kernels, activation: Activation) -> None:
    x = torch.tensor([[60000.0, -60000.0, 100.0, -100.0, 0.0, 1.0, -1.0, 20.0] + [1.0] * 8], device="cuda").half()
    found, wanted = kernels.gate(x, activation), reference_prompt.gate(x, activation)
    assert not found.isnan().any()
    assert torch.allclose(found.double(), wanted, rtol=1e-3, atol=1e-6), (found, wanted)


@pytest.mark.parametrize("rows", [1, 7, 2048])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (32, 8), (3, 1)])
def test_turn(kernels: Kernels, rows: int, head_dim: int, heads: int, kv_heads: int) -> None:
    angles = torch.rand(rows, head_dim // 2, device="cuda") * 6
    turns = torch.stack((angles.cos(), angles.sin()), dim=-1)
    x = torch.randn(rows, heads + 2 * kv_heads, head_dim, device="cuda").half()
    wanted = reference_prompt.turn(x, turns, heads + kv_heads)
    kernels.turn(x, turns, heads + kv_heads)
    assert relative_error(x, wanted) < 1e-3
    assert torch.equal(x[:, heads + kv_heads :].double(), wanted[:, heads + kv_heads :])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (64, 16), (80, 32), (96, 24), (128, 64), (128, 4)])
def test_interleaved_and_partial_turns(
    kernels: Kernels, rows: int, head_dim: int, rotary_dim: int, interleaved: bool
) -> None:
    angles = torch.rand(rows, rotary_dim // 2, device="cuda") * 6
    turns = torch.stack((angles.cos(), angles.sin()), dim=-1)
    x = torch.randn(rows, 12, head_dim, device="cuda").half()
    before, wanted = x.clone(), reference_prompt.turn(x, turns, 10, interleaved=interleaved)
    kernels.turn(x, turns, 10, interleaved=interleaved)
    beyond = ((x.double() - wanted).abs() - 1e-3 * wanted.abs() - 1e-4).flatten()
    at = int(beyond.argmax())
    assert beyond[at] <= 0, f"number {at} is {float(x.flatten()[at])}, not {float(wanted.flatten()[at])}"
    assert torch.equal(x[:, 10:], before[:, 10:]), "heads behind the turned ones have changed"
    assert torch.equal(x[..., rotary_dim:], before[..., rotary_dim:]), "elements that are not turned have changed"
