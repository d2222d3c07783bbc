"""The operations of `prompt.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """float64 `[rows, width]`; `hidden` takes what is added."""
    if added is not None:
        hidden += added
    return functional.rms_norm(hidden.double(), (hidden.shape[1],), eps=eps) * weight.double()


def gate(x: Tensor) -> Tensor:
    """float64 `[rows, inner]`."""
    first, second = x.double().chunk(2, dim=1)
    return functional.silu(first) * second


def turn(x: Tensor, turns: Tensor, heads: int) -> Tensor:
    """float64 `[rows, all heads, head_dim]`."""
    cos, sin = turns.double().unsqueeze(1).unbind(-1)
    first, second = x[:, :heads].double().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned, x[:, heads:].double()), dim=1)
