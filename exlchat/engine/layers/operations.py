"""What a decoder computes between its products, for any number of tokens: norms, gates and rotary positions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.quantized_linear import Permuted
from exlchat.engine.layers.rope import rotate
from exlchat.engine.model.spec import Activation
from exlchat.ext.products import Activation as KernelActivation


class Operations(Protocol):
    """The residual stream is float32, everything else in the dtype of the weights."""

    def add_norm(
        self,
        hidden: Tensor,
        added: Tensor | None,
        norm: Norm | None,
        *,
        after: Norm | None = None,
        scale: float = 1.0,
        permutation: Tensor | None = None,
    ) -> Tensor | Permuted:
        """`hidden` `[tokens, width]` takes what is added; returns it normed.

        Args:
            added: in the dtype of the weights.
            norm: of the next product; without one that reads the residual as it is.
            after: the norm of what is added.
            scale: its factor.
            permutation: of the next product, which takes the result `Permuted` or not.
        """

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        """`[tokens, 2 * inner]` -> `[tokens, inner]`: `activation(first half) * second half`. May overwrite x."""

    def turn(self, heads: Tensor, turns: Tensor, count: int, *, interleaved: bool = False) -> None:
        """Turns the first `count` of `[tokens, heads, head_dim]` in place by float32 `[tokens, dim / 2, 2]`."""


class TorchOperations:
    """In plain torch, on any device.

    Args:
        dtype: of the weights.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def add_norm(
        self,
        hidden: Tensor,
        added: Tensor | None,
        norm: Norm | None,
        *,
        after: Norm | None = None,
        scale: float = 1.0,
        permutation: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        if added is not None:
            hidden.add_(added if after is None else after(added.float()), alpha=scale)
        return (hidden if norm is None else norm(hidden)).to(self._dtype)

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        # In place: of a long chunk these are the largest tensors.
        if activation == "silu":
            return functional.silu(first, inplace=True).mul_(second)
        return activate(first, activation).mul_(second)

    def turn(self, heads: Tensor, turns: Tensor, count: int, *, interleaved: bool = False) -> None:
        cos, sin = turns.to(heads.dtype).unsqueeze(1).unbind(-1)
        heads[:, :count] = rotate(heads[:, :count], cos, sin, interleaved=interleaved)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """One of `silu`, `gelu` and `gelu_tanh` (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


KERNEL_ACTIVATIONS: dict[Activation, KernelActivation] = {
    "silu": "silu",
    "gelu_tanh": "gelu_tanh",
    "gelu": "gelu_erf",
}
"""What the CUDA extension calls them."""


class FusedKernels(Protocol):
    """What `KernelOperations` needs of the CUDA extension: see `exlchat.ext.prompt.PromptKernels`."""

    def add_norm(
        self, hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, permutation: Tensor | None = None
    ) -> Tensor: ...

    def gate(self, x: Tensor, activation: KernelActivation = "silu") -> Tensor: ...

    def turn(self, x: Tensor, turns: Tensor, heads: int, *, interleaved: bool = False) -> None: ...


class KernelOperations:
    """Through the CUDA extension, in float16: each of them reads and writes its tensors once.

    What other architectures than Llama's need and the kernels do not know goes through torch.
    """

    def __init__(self, kernels: FusedKernels) -> None:
        self._kernels = kernels
        self._torch = TorchOperations(torch.float16)

    def add_norm(
        self,
        hidden: Tensor,
        added: Tensor | None,
        norm: Norm | None,
        *,
        after: Norm | None = None,
        scale: float = 1.0,
        permutation: Tensor | None = None,
    ) -> Tensor | Permuted:
        plain = norm is not None and norm.kind == "rms" and after is None and scale == 1.0
        if norm is None or not plain:
            return self._torch.add_norm(hidden, added, norm, after=after, scale=scale)
        if permutation is None:
            return self._kernels.add_norm(hidden, added, norm.weight, norm.eps)
        return Permuted(self._kernels.add_norm(hidden, added, norm.weight, norm.eps, permutation=permutation))

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        return self._kernels.gate(x, KERNEL_ACTIVATIONS[activation])

    def turn(self, heads: Tensor, turns: Tensor, count: int, *, interleaved: bool = False) -> None:
        if turns.shape[1] % 2 or heads.shape[-1] % 4:
            self._torch.turn(heads, turns, count, interleaved=interleaved)
            return
        self._kernels.turn(heads, turns, count, interleaved=interleaved)
