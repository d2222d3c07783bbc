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
        x = read(x, matrix.features)
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
    return read(x, weight.shape[1]).double() @ weight.double().T


def read(x: Normed, width: int) -> Tensor:
    """float16 `[rows, stored]`: what a residual left, normed; the scale of what it lacks is left in turn."""
    values, sums = x.values.double(), x.squares.double().sum(1, keepdim=True) / width
    if x.deferred is None:
        return (values * torch.rsqrt(sums + x.eps)).half()
    scale = torch.rsqrt(sums[..., 3] + x.eps)
    x.deferred.scale.copy_(scale[:, 0])
    mean = sums[..., 0] + 2 * scale * sums[..., 1] + scale.square() * sums[..., 2]
    joined = values[..., 0] + values[..., 1] * scale
    return (joined * torch.rsqrt(mean + x.eps) if x.before else joined).half()


def put_residual(residual: Residual, stream: Tensor, added: Tensor | None = None) -> None:
    """Makes float `[rows, width]` the residual stream and adds to it, with all that is left behind."""
    stream, added = stream.double(), torch.zeros_like(stream.double()) if added is None else added.double()
    value = torch.addcmul(stream, added, torch.full_like(added, residual.multiplier))
    sums, left = [value.square()], [value]
    if residual.deferred is not None:
        weight = 0.0 if residual.post_norm is None else residual.post_norm.double()
        delta = residual.multiplier * weight * added
        residual.deferred.delta.copy_(delta)
        value, left = stream, [stream, delta]
        sums = [stream.square(), stream * delta, delta.square(), added.square()]
    residual.hidden.copy_(value)
    residual.squares.copy_(
        torch.stack(sums, -1).view(len(value), -1, 16, len(sums)).sum(2).view(residual.squares.shape)
    )
    for copy in residual.copies:
        weight = torch.ones_like(value[0]) if copy.weight is None else copy.weight.double()
        stored = torch.stack([one * weight for one in left], -1).float()
        copy.values[:, unsigned(copy.scatter)] = stored.view(*value.shape, *copy.values.shape[2:])


def stream_of(residual: Residual) -> Tensor:
    """float64 `[rows, width]`."""
    if residual.deferred is None:
        return residual.hidden.double()
    deferred = residual.deferred
    return residual.hidden.double() + deferred.delta.double() * deferred.scale.double().unsqueeze(1)


def add_product(matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> None:
    """`hidden += x W + b`."""
    put_residual(residual, stream_of(residual), product([matrix], x))


def embed(table: Tensor, token: Tensor, residual: Residual | Tensor, multiplier: float = 1.0) -> None:
    """`hidden` becomes rows of a table, times a multiplier."""
    value = table[token].float() * multiplier
    if isinstance(residual, Tensor):
        residual.copy_(value)
    else:
        put_residual(residual, value)
