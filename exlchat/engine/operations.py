"""What a decoder computes between its products, for any number of tokens: norms, gates and rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from exlchat.engine.rope import rotate


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """`x * w / sqrt(mean(x^2) + eps)`, the mean in float32 (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    weight: Tensor
    eps: float


class Operations(Protocol):
    """The residual stream is float32, everything else in the dtype of the weights."""

    def add_norm(self, hidden: Tensor, added: Tensor | None, norm: RMSNorm) -> Tensor:
        """`hidden` `[tokens, width]` takes what is added; returns it normed."""

    def gate(self, x: Tensor) -> Tensor:
        """`[tokens, 2 * inner]` -> `[tokens, inner]`: `silu(first half) * second half`. May overwrite x."""

    def turn(self, heads: Tensor, turns: Tensor, count: int) -> None:
        """Turns the first `count` of `[tokens, heads, head_dim]` in place by float32 `[tokens, head_dim / 2, 2]`."""


class TorchOperations:
    """In plain torch, on any device."""

    def add_norm(self, hidden: Tensor, added: Tensor | None, norm: RMSNorm) -> Tensor:
        """See `Operations`."""
        if added is not None:
            hidden += added
        normed = functional.rms_norm(hidden, (hidden.shape[-1],), eps=norm.eps)
        return (normed * norm.weight).to(norm.weight.dtype)

    def gate(self, x: Tensor) -> Tensor:
        """See `Operations`."""
        first, second = x.chunk(2, dim=-1)
        # In place: of a long chunk these are the largest tensors.
        return functional.silu(first, inplace=True).mul_(second)

    def turn(self, heads: Tensor, turns: Tensor, count: int) -> None:
        """See `Operations`."""
        cos, sin = turns.to(heads.dtype).unsqueeze(1).unbind(-1)
        heads[:, :count] = rotate(heads[:, :count], cos, sin)


class FusedKernels(Protocol):
    """What `KernelOperations` needs of the CUDA extension: see `exlchat.ext.prompt.PromptKernels`."""

    def add_norm(self, hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """See `exlchat.ext.prompt`."""

    def gate(self, x: Tensor) -> Tensor:
        """See `exlchat.ext.prompt`."""

    def turn(self, x: Tensor, turns: Tensor, heads: int) -> None:
        """See `exlchat.ext.prompt`."""


class KernelOperations:
    """Through the CUDA extension, in float16: each of them reads and writes its tensors once."""

    def __init__(self, kernels: FusedKernels) -> None:
        self._kernels = kernels

    def add_norm(self, hidden: Tensor, added: Tensor | None, norm: RMSNorm) -> Tensor:
        """See `Operations`."""
        return self._kernels.add_norm(hidden, added, norm.weight, norm.eps)

    def gate(self, x: Tensor) -> Tensor:
        """See `Operations`."""
        return self._kernels.gate(x)

    def turn(self, heads: Tensor, turns: Tensor, count: int) -> None:
        """See `Operations`."""
        self._kernels.turn(heads, turns, count)
