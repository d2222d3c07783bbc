"""The operations of `prompt.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.products import Activation
from tests.ext.reference import activated
from tests.ext.reference_attention import turned


def add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """float64 `[rows, width]`; `hidden` takes what is added."""
    if added is not None:
        hidden += added
    return functional.rms_norm(hidden.double(), (hidden.shape[1],), eps=eps) * weight.double()


def gate(x: Tensor, activation: Activation = "silu") -> Tensor:
    """float64 `[rows, inner]`."""
    first, second = x.double().chunk(2, dim=1)
    return activated(first, activation) * second


def turn(x: Tensor, turns: Tensor, heads: int, *, interleaved: bool = False) -> Tensor:
    """float64 `[rows, all heads, head_dim]`."""
    first = turned(x[:, :heads].double(), turns.unsqueeze(1), interleaved=interleaved)
    return torch.cat((first, x[:, heads:].double()), dim=1)
