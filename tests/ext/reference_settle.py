"""The operation of `settle.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.layout import unsigned
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy


def settle(
    hidden: Tensor, copies: Sequence[NormedCopy], *, norm: KernelNorm | None, joining: Joining | None = None
) -> None:
    """As `settle.SettleKernels.settle`, computed in float64."""
    row = hidden.double()
    if joining is not None:
        row = row + joining.multiplier * _joined(joining, hidden)
        hidden.copy_(row)
    x = _normed(row, norm)
    for copy in copies:
        places = slice(None) if copy.scatter is None else unsigned(copy.scatter)
        copy.x[:, places] = x.half()


def _joined(joining: Joining, hidden: Tensor) -> Tensor:
    """float64 `[rows, width]`: the normed sum, before the multiplier."""
    total = torch.zeros_like(hidden, dtype=torch.float64)
    if joining.y is not None:
        slots = joining.y.double().view(len(hidden), -1, hidden.shape[1])
        factors = torch.ones_like(slots[:, :, 0]) if joining.weights is None else joining.weights.double()
        total += torch.einsum("rs,rsw->rw", factors, slots)
    if joining.added is not None:
        share = 1.0 if joining.gate is None else torch.sigmoid(joining.gate.double()).unsqueeze(1)
        total += share * joining.added.double()
    return _normed(total, joining.norm)


def _normed(row: Tensor, norm: KernelNorm | None) -> Tensor:
    if norm is None:
        return row
    weight = norm.weight.double()
    if norm.kind == "rms":
        normed = functional.rms_norm(row, weight.shape, weight, norm.eps)
        return normed if norm.bias is None else normed + norm.bias.double()
    bias = None if norm.bias is None else norm.bias.double()
    return functional.layer_norm(row, weight.shape, weight, bias, norm.eps)
