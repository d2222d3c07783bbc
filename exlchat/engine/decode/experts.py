"""Mixtures of experts in the decode step: the layout that the kernels of chosen experts read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from exlchat.engine.decode.kernels import AfterTheLast, StepKernels
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear, is_whole
from exlchat.engine.layers.operations import KERNEL_ACTIVATIONS
from exlchat.engine.layers.quantized_linear import Launch, QuantizedLinear
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import OAI_ALPHA, ExpertActivation, InputOrder
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import Normed, Residual
from exlchat.ext.routing import Choice, RouteRules

# 4,096 rows of 2,048 floats and 768 halves, as Qwen3-30B-A3B has them, take 40 MB.
_SLOTS_AT_ONCE = 4096


class UnfitError(Exception):
    """The kernels do not hold a part of the model: why."""


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Quantized experts.

    Args:
        gates: gate and up of each, whose products go to where `downs` read them, if all leave the same places empty.
    """

    gates: ExpertMatrices
    downs: ExpertMatrices


@dataclass(frozen=True, slots=True)
class FloatExperts:
    """Experts in float16."""

    gates: DenseExperts
    downs: DenseExperts


def pack_experts(experts: Experts) -> PackedExperts | FloatExperts:
    """The weights of all experts as the kernels read them; nothing is copied.

    Raises:
        UnfitError: they are not alike, or neither quantized in a way that the kernels hold nor in float16; or more of
            them are chosen, or another activation stands between them, than the kernels know.
    """
    parts = experts.experts
    if parts[0].activation == "swiglu_oai" and parts[0].alpha != OAI_ALPHA:
        raise UnfitError(f"the activation of its experts has an alpha of {parts[0].alpha:g}, not {OAI_ALPHA:g}")
    try:
        _rules(experts)
        if all(_is_packed(part) for part in parts):
            downs = ExpertMatrices([_matrices(part.down) for part in parts])
            gates = [_matrices(part.gate_up) for part in parts]
            return PackedExperts(ExpertMatrices(gates, into=downs if downs.same_places else None), downs)
        if all(isinstance(part.gate_up, Linear) and isinstance(part.down, Linear) for part in parts):
            return _float_experts(parts)
    except ValueError as error:
        raise UnfitError(str(error)) from error
    raise UnfitError("some experts are quantized in a way that the kernels do not hold")


def packed_experts(experts: Experts) -> PackedExperts | FloatExperts:
    """The same, of experts that were packed when they were loaded what was made then.

    Raises:
        UnfitError: as `pack_experts`.
    """
    return experts.together.packed if isinstance(experts.together, ExpertRows) else pack_experts(experts)


def why_not_added(experts: Experts) -> str | None:
    """Why no product adds what the experts of a layer give to the residual, or `None` where one does."""
    if experts.shared is not None:
        return "an expert is for all tokens"
    packed = packed_experts(experts)
    if not isinstance(packed, PackedExperts) or packed.gates.into is None:
        return "they are not quantized in a way that the kernels hold"
    return packed.downs.why_not_summed(experts.chosen)


def _rules(experts: Experts) -> RouteRules:
    return RouteRules(len(experts.experts), experts.chosen, experts.renormalise)


class _Between(TypedDict):
    """What stands between the two products of an expert."""

    activation: ExpertActivation
    limit: float


def _activation(expert: Mlp) -> ExpertActivation:
    return "swiglu_oai" if expert.activation == "swiglu_oai" else KERNEL_ACTIVATIONS[expert.activation]


def _is_packed(part: Mlp) -> bool:
    return all(is_whole(layer) and len(layer.runs) == 1 for layer in (part.gate_up, part.down))


def _matrices(layer: Joined) -> tuple[PackedMatrix, ...]:
    if not isinstance(layer, QuantizedLinear):
        raise TypeError(f"{type(layer).__name__} has no matrices of the kernels")
    return layer.matrices


def _float_experts(parts: tuple[Mlp, ...]) -> FloatExperts:
    gate_ups, gate_up_biases = _stacked([part.gate_up for part in parts])
    downs, down_biases = _stacked([part.down for part in parts])
    gates = DenseExperts(tuple(gate_ups.chunk(2, dim=1)), tuple(_contiguous(gate_up_biases)))
    return FloatExperts(gates, DenseExperts((downs,), () if down_biases is None else (down_biases,)))


def _contiguous(biases: Tensor | None) -> list[Tensor]:
    return [] if biases is None else [half.contiguous() for half in biases.chunk(2, dim=1)]


def _stacked(layers: list[Joined]) -> tuple[Tensor, Tensor | None]:
    """The weights of all experts where they stand one behind the other, as loading puts them."""
    linears = [layer for layer in layers if isinstance(layer, Linear)]
    first = linears[0].weight
    if any(linear.weight.data_ptr() != first.data_ptr() + i * first.nbytes for i, linear in enumerate(linears)):
        raise ValueError("experts in float16 do not stand one behind the other")
    whole = first.as_strided((len(linears), *first.shape), (first.numel(), *first.stride()))
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return whole, torch.stack(biases) if biases else None


@dataclass(frozen=True, slots=True)
class Router:
    """What chooses: the router's rows, and behind them that of the shared expert's gate, where there is one.

    Args:
        rows: float16 or float32 `[rows, width]`.
        bias: float32 `[rows]`.
    """

    rows: Tensor
    bias: Tensor | None
    rules: RouteRules

    @classmethod
    def of(cls, experts: Experts) -> Router:
        router, shared = experts.router, experts.shared
        rows = router.weight if shared is None else torch.cat((router.weight, shared.gate.weight))
        return cls(rows.contiguous(), None if router.bias is None else router.bias.float(), _rules(experts))


class ExpertJobs:
    """Makes the operations of a layer's experts.

    Args:
        kernels: on the model's device.
        make: `[tokens, columns]` of a dtype, zeros at first; and whether some columns stay so, because nothing writes
            them.
    """

    def __init__(self, kernels: StepKernels, make: Callable[[int, torch.dtype, bool], Tensor]) -> None:
        self._kernels = kernels
        self._make = make

    def route(self, router: Router, x: Tensor | Normed, tickets: Tensor) -> tuple[Launch, Choice]:
        """The choice of tokens of `[tokens, width]`, whose tickets are int32 `[tokens]`, zeros."""
        slots = router.rules.slots
        made = self._make(slots, torch.int32, False), self._make(slots, torch.float32, False)
        choice = Choice(self._make(len(router.rows), torch.float32, False), router.rules, made)
        job = self._kernels.route(
            x,
            router.rows,
            router.rules,
            logits=choice.logits,
            chosen=made[0],
            weights=made[1],
            tickets=tickets,
            bias=router.bias,
        )
        return job, choice

    def score(self, router: Router, x: Tensor | Normed) -> tuple[Launch, Choice]:
        """The logits alone: the products choose by them.

        Of one token they are there sooner then, and to choose takes a product no longer than to look up who was chosen.
        Of several it does, as blocks come one behind the other (Qwen3-30B-A3B, an H200: 8 of 48 layers take eight
        tokens 951 instead of 880 us).
        """
        choice = Choice(self._make(len(router.rows), torch.float32, False), router.rules)
        return self._kernels.score(x, router.rows, router.rules, logits=choice.logits, bias=router.bias), choice

    def products(
        self, packed: PackedExperts | FloatExperts, chosen: Tensor, x: Tensor, expert: Mlp
    ) -> tuple[list[Launch], Tensor]:
        """Of the chosen experts, which are all like `expert`; and float32 `[tokens * slots, width]`, what they leave.

        Args:
            chosen: int32 `[tokens, slots]`. How the products are cut up depends on the slots.
            x: float16 `[tokens, width]`, or a row for each slot.

        Started early, the three of a Mixtral's layer took an H200 75.7 us, so 59.6; those of a Qwen3-30B-A3B 19.9 both
        ways (`benchmarks/experts.py`).
        """
        slots = chosen.shape[1]
        y = self._of_slots(slots, packed.downs.outputs, torch.float32)
        if isinstance(packed, FloatExperts):
            inner = self._of_slots(slots, packed.gates.outputs, torch.float16)
            between = _Between(activation=_activation(expert), limit=expert.limit)
            first = self._kernels.dense_expert_product(packed.gates, chosen, x, inner, "gated", **between)
            second = self._kernels.dense_expert_product(packed.downs, chosen, inner, y, "float")
            return [AfterTheLast(first), AfterTheLast(second)], y
        gated, inner = self._gated(packed, chosen, x, expert)
        order: InputOrder = "features" if packed.gates.into is None else "stored"
        second = self._kernels.expert_product(packed.downs, chosen, inner, y, "float", order=order)
        return [AfterTheLast(gated), AfterTheLast(second)], y

    def added(
        self, packed: PackedExperts, choice: Choice, x: Tensor | Normed, expert: Mlp
    ) -> tuple[Launch, Callable[[Residual], Launch]]:
        """The first product of the chosen experts; and the second, which adds what all of a token's give."""
        gated, inner = self._gated(packed, choice, x, expert)

        def add(residual: Residual) -> Launch:
            return self._kernels.add_experts(packed.downs, choice, inner, residual)

        return AfterTheLast(gated), add

    def _gated(
        self, packed: PackedExperts, chosen: Tensor | Choice, x: Tensor | Normed, expert: Mlp
    ) -> tuple[Launch, Tensor]:
        """Gate and up, and where that goes: `[tokens * slots, stored]` in the order of `downs`, or of the columns."""
        gates = packed.gates
        width = gates.outputs if gates.into is None else packed.downs.stored
        slots = chosen.rules.slots if isinstance(chosen, Choice) else chosen.shape[1]
        inner = self._of_slots(slots, width, torch.float16, padded=width != gates.outputs)
        between = _Between(activation=_activation(expert), limit=expert.limit)
        return self._kernels.expert_product(gates, chosen, x, inner, "gated", **between), inner

    def _of_slots(self, slots: int, columns: int, dtype: torch.dtype, *, padded: bool = False) -> Tensor:
        return self._make(slots * columns, dtype, padded).view(-1, columns)


class ExpertRows:
    """An `experts.Together` through the kernels of chosen experts.

    Args:
        kernels: on the model's device.
        packed: the experts of a layer.
        expert: one of them.
    """

    def __init__(self, kernels: StepKernels, packed: PackedExperts | FloatExperts, expert: Mlp) -> None:
        self.packed = packed
        self._kernels = kernels
        self._expert = expert

    def __call__(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        each = max(_SLOTS_AT_ONCE // numbers.shape[1], 1)
        parts = [torch.split(tensor, each) for tensor in (x, weights, numbers)]
        return torch.cat([self._part(*some) for some in zip(*parts, strict=True)])

    def _part(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        tokens, slots = numbers.shape
        chosen = numbers.int().view(1, -1)  # cut up as those of one token, so that they fill the card once

        def zeros(columns: int, dtype: torch.dtype, _padded: bool) -> Tensor:
            return torch.zeros(1, columns, dtype=dtype, device=x.device)

        jobs, y = ExpertJobs(self._kernels, zeros).products(self.packed, chosen, x, self._expert)
        for job in jobs:
            job.launch(dependent=False)
        return (y.view(tokens, slots, -1) * weights.unsqueeze(-1)).sum(1)
