"""The operations of `products.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.layout import PackedMatrix, decode, unsigned
from exlchat.ext.products import Activation, Normed, Residual


def product(matrices: Sequence[PackedMatrix], x: Tensor | Normed) -> Tensor:
    """float64 `[rows, columns]`: `x W + b` of all matrices, their columns one behind the other."""
    return torch.cat([_one_product(matrix, x) for matrix in matrices], dim=1)


def _one_product(matrix: PackedMatrix, x: Tensor | Normed) -> Tensor:
    if isinstance(x, Normed):
        mean = x.squares.double().sum(1, keepdim=True) / matrix.features
        x = (x.values.double() * torch.rsqrt(mean + x.eps)).half()
    features = x.double()[:, unsigned(matrix.scatter)]
    y = features @ decode(matrix).double()
    return y if matrix.bias is None else y + matrix.bias.double()


def gated(gate: PackedMatrix, up: PackedMatrix, x: Tensor | Normed, activation: Activation = "silu") -> Tensor:
    """float64 `[rows, columns]`: `activation(x W0) * (x W1)`."""
    return activated(product([gate], x), activation) * product([up], x)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """Of any shape."""
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def head_product(weight: Tensor, x: Tensor | Normed) -> Tensor:
    """float64 `[rows, outputs]`: `x W^T`."""
    if isinstance(x, Tensor):
        return x.double() @ weight.double().T
    mean = x.squares.double().sum(1, keepdim=True) / weight.shape[1]
    return (x.values.double() * torch.rsqrt(mean + x.eps)).half().double() @ weight.double().T


def put_residual(residual: Residual, value: Tensor) -> None:
    """Makes float `[rows, width]` the residual stream, with all that it leaves behind."""
    residual.hidden.copy_(value)
    residual.squares.copy_(value.double().square().view(len(value), -1, 16).sum(2))
    for copy in residual.copies:
        copy.values[:, unsigned(copy.scatter)] = (value.double() * copy.weight.double()).float()


def add_product(matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> None:
    """`hidden += x W + b`."""
    put_residual(residual, residual.hidden.double() + product([matrix], x))


def embed(table: Tensor, token: Tensor, residual: Residual | Tensor, multiplier: float = 1.0) -> None:
    """`hidden` becomes rows of a table, times a multiplier."""
    value = table[token].float() * multiplier
    if isinstance(residual, Tensor):
        residual.copy_(value)
    else:
        put_residual(residual, value)
