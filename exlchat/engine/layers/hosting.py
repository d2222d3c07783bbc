"""Parts of layers whose weights lie in the machine's memory. Biases, norms and what decides between experts stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from exlchat.engine.cards.host_memory import Hosted, HostMemory
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear, SideBySide
from exlchat.engine.layers.quantized_linear import QuantizedLinear


def hosted(part: Joined, memory: HostMemory) -> Joined:
    """The same with its weights there."""
    if isinstance(part, SideBySide):
        return SideBySide(tuple(hosted_linear(one, memory) for one in part.parts))
    return hosted_linear(part, memory)


def hosted_linear(part: Linear | QuantizedLinear, memory: HostMemory) -> Linear | QuantizedLinear:
    """As `hosted`."""
    weights = memory.hold(_weights(part))
    if isinstance(part, Linear):
        linear = _linear(part, weights.tensors)
        return replace(linear, host=Hosted(weights, partial(_linear, linear)))
    quantized = _quantized(part, weights.tensors)
    return replace(quantized, host=Hosted(weights, partial(_quantized, quantized)))


def hosted_mlp(mlp: Mlp, memory: HostMemory) -> Mlp:
    """As `hosted`."""
    return replace(mlp, gate_up=hosted(mlp.gate_up, memory), down=hosted_linear(mlp.down, memory))


def hosted_experts(experts: Experts, memory: HostMemory, together: Callable[[Experts], Experts]) -> Experts:
    """The same with the weights of its experts there, of all of them at one place.

    Args:
        together: gives experts what computes them at once.
    """
    parts = experts.experts
    # All of one kind one behind the other, as `decode.experts` wants those in float16.
    weights = memory.hold([tensor for part in _parts_of(parts) for tensor in _weights(part)])
    here = _experts(experts, weights.tensors)
    return replace(together(here), host=Hosted(weights, lambda copies: together(_experts(here, copies))))


def _parts_of(experts: Sequence[Mlp]) -> list[Joined]:
    return [*(expert.gate_up for expert in experts), *(expert.down for expert in experts)]


def _weights(part: Joined) -> list[Tensor]:
    if isinstance(part, SideBySide):
        return [tensor for one in part.parts for tensor in _weights(one)]
    if isinstance(part, Linear):
        return [part.weight.contiguous()]
    return [tensor for matrix in part.matrices for tensor in (matrix.words, matrix.scales)]


def _linear(part: Linear, weights: Sequence[Tensor]) -> Linear:
    (weight,) = weights
    return replace(part, weight=weight, mapped=False)


def _quantized(part: QuantizedLinear, weights: Sequence[Tensor]) -> QuantizedLinear:
    left = iter(weights)
    matrices = [replace(matrix, words=next(left), scales=next(left)) for matrix in part.matrices]
    return replace(part, matrices=tuple(matrices))


def _experts(experts: Experts, weights: Sequence[Tensor]) -> Experts:
    left = iter(weights)
    parts = experts.experts
    gate_ups = [_next(part.gate_up, left) for part in parts]
    downs = [_next_linear(part.down, left) for part in parts]
    moved = [
        replace(part, gate_up=gate_up, down=down) for part, gate_up, down in zip(parts, gate_ups, downs, strict=True)
    ]
    return replace(experts, experts=tuple(moved))


def _next(part: Joined, left: Iterator[Tensor]) -> Joined:
    if isinstance(part, SideBySide):
        return SideBySide(tuple(_next_linear(one, left) for one in part.parts))
    return _next_linear(part, left)


def _next_linear(part: Linear | QuantizedLinear, left: Iterator[Tensor]) -> Linear | QuantizedLinear:
    weights = [next(left) for _ in _weights(part)]
    return _linear(part, weights) if isinstance(part, Linear) else _quantized(part, weights)
