"""Mixtures of experts: which of them compute a token, and what comes of it (Shazeer et al. 2017, arXiv 1701.06538)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from exlchat.engine.cards.host_memory import Hosted
from exlchat.engine.layers.linear import Joined, Linear, multiplied
from exlchat.engine.layers.operations import Operations, activate
from exlchat.engine.layers.quantized_linear import MAX_ROWS, Permuted, QuantizedLinear
from exlchat.engine.model.spec import Activation

# To go through the experts one by one takes the host some 170 us for each (one H200: 22 ms for 128), in which the
# device reads half a gigabyte.
_READ_A_TURN = 5 * 10**8


@dataclass(frozen=True, slots=True)
class Mlp:
    """`down(activation(gate(x)) * up(x))`, or without a gate `down(activation(up(x)))`.

    Args:
        gate_up: gate and up joined; up alone where there is no gate.
        limit, alpha: of the activation `swiglu_oai`, which is `clamp(gate) sigmoid(alpha gate) (clamp(up) + 1)`.
    """

    gate_up: Joined
    down: Linear | QuantizedLinear
    activation: Activation = "silu"
    gated: bool = True
    limit: float = 7.0
    alpha: float = 1.702

    @property
    def bytes(self) -> int:
        return self.gate_up.bytes + self.down.bytes

    @property
    def bytes_per_token(self) -> int:
        return self.bytes

    def __call__(self, x: Tensor | Permuted, operations: Operations) -> Tensor:
        """`[tokens, width]` -> `[tokens, width]`; x may be `Permuted` where gate and up have a permutation."""
        inner = multiplied(self.gate_up, x)
        if self.activation == "swiglu_oai":
            return self.down(_swiglu_oai(inner, self.limit, self.alpha))
        if self.gated:
            return self.down(operations.gate(inner, self.activation))
        return self.down(activate(inner, self.activation))


def _swiglu_oai(x: Tensor, limit: float, alpha: float) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert that computes every token; what it gives is multiplied by the sigmoid of the gate, `[1, width]`."""

    mlp: Mlp
    gate: Linear


class Together(Protocol):
    """Computes each token by its own experts, whose weights it reads for each token anew."""

    def __call__(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        """`[tokens, width]`, weights and numbers `[tokens, chosen]` -> float32 `[tokens, width]`."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Some MLPs compute each token, chosen and weighted by a router.

    Args:
        router: its scores, one for each expert.
        experts: of one shape.
        chosen: how many compute a token.
        renormalise: whether the weights of the chosen sum to 1, not those of all.
        shared: the one that computes every token.
        together: computes some tokens by all their experts at once, where the kernels hold them.
        host: where the experts lie in the machine's memory; a prompt would read most of them more than once.
    """

    router: Linear
    experts: tuple[Mlp, ...]
    chosen: int
    renormalise: bool
    shared: SharedExpert | None = None
    together: Together | None = None
    host: Hosted[Experts] | None = None

    @property
    def bytes(self) -> int:
        shared = 0 if self.shared is None else self.shared.mlp.bytes + self.shared.gate.bytes
        return self.router.bytes + self.bytes_of_experts + shared

    @property
    def bytes_per_token(self) -> int:
        """Of the weights, what one token reads: those of the chosen experts."""
        return self.bytes - self.bytes_of_experts + self.bytes_of_chosen

    @property
    def bytes_of_experts(self) -> int:
        """Without router and shared expert."""
        return sum(expert.bytes for expert in self.experts)

    @property
    def bytes_of_chosen(self) -> int:
        return self.bytes_of_experts * self.chosen // len(self.experts)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[tokens, width]` -> float32 weights and int64 numbers of the experts, `[tokens, chosen]`.

        The scores are in float32: two experts that are nearly alike must not change places by rounding.
        """
        bias = self.router.bias
        scores = torch.nn.functional.linear(
            x.float(), self.router.weight.float(), None if bias is None else bias.float()
        )
        weights, numbers = scores.softmax(-1).topk(self.chosen, dim=-1)
        return (weights / weights.sum(-1, keepdim=True) if self.renormalise else weights), numbers

    def __call__(self, x: Tensor, operations: Operations) -> Tensor:
        """`[tokens, width]` -> `[tokens, width]`."""
        if self.host is not None and len(x) > MAX_ROWS:
            return self.host.fetched()(x, operations)
        weights, numbers = self.route(x)
        read = len(x) * self.chosen * self.experts[0].bytes
        if self.together is not None and read < len(self.experts) * _READ_A_TURN:
            mixed = self.together(x, weights, numbers)
        else:
            mixed = self._one_by_one(x, weights, numbers, operations)
        if self.shared is not None:
            share = torch.sigmoid(self.shared.gate(x).float())
            mixed += share * self.shared.mlp(x, operations).float()
        return mixed.to(x.dtype)

    def _one_by_one(self, x: Tensor, weights: Tensor, numbers: Tensor, operations: Operations) -> Tensor:
        """Every expert computes its tokens, float32 `[tokens, width]`."""
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        # Sorted once: a GPU is asked for the counts of all experts, not expert by expert which rows are its own.
        flat, each = numbers.flatten(), weights.flatten()
        counts: list[int] = torch.bincount(flat, minlength=len(self.experts)).tolist()
        places_of = torch.split(flat.argsort(stable=True), counts)
        for expert, places in zip(self.experts, places_of, strict=True):
            if len(places):
                rows = places // self.chosen
                computed = expert(x[rows], operations).float()
                mixed.index_add_(0, rows, computed * each[places, None])
        return mixed
