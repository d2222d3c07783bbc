"""Norms of the residual stream and of heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.cards.split import placed_on
from exlchat.engine.model.spec import HeadNorms, NormKind


@dataclass(frozen=True, slots=True)
class Norm:
    """`rms`: `x w / sqrt(mean(x^2) + eps)` (Zhang and Sennrich 2019, arXiv 1910.07467); `layer`: `(x - mean(x)) w /
    sqrt(var(x) + eps) + b` (Ba et al. 2016, arXiv 1607.06450).

    Args:
        weight: `[width]`, what the model adds to it included.
        bias: `[width]`, of `layer` only.
    """

    weight: Tensor
    eps: float
    kind: NormKind = "rms"
    bias: Tensor | None = None

    @property
    def bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def on(self, device: torch.device) -> Norm:
        return replace(
            self,
            weight=placed_on(self.weight, device),
            bias=None if self.bias is None else placed_on(self.bias, device),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """float32 `[..., width]` -> float32 of the same shape."""
        if self.kind == "rms":
            return functional.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight
        normed = functional.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """Norm of queries or of keys before they are turned.

    Args:
        kind: `rms`: of each head; `layer`: of each head, its mean subtracted; `joint`: RMS over all heads together.
        weight: `[head_dim]` where all heads share it, `[heads, head_dim]` where each has its own; `[heads * head_dim]`
            of `joint`. What the model adds to it included.
    """

    kind: HeadNorms
    weight: Tensor
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        """`[tokens, heads, head_dim]` -> the same, computed in float32."""
        x = heads.float()
        if self.kind == "joint":
            flat = x.flatten(1)
            return (functional.rms_norm(flat, flat.shape[-1:], eps=self.eps) * self.weight).view_as(x).to(heads.dtype)
        if self.kind == "layer":
            return (functional.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight).to(heads.dtype)
        return (functional.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight).to(heads.dtype)
