"""A linear layer as the transformer sees it, whatever format its weights came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.cards.host_memory import Hosted
from exlchat.engine.layers.quantized_linear import MAX_ROWS, Permuted, QuantizedLinear, join_quantized
from exlchat.ext.layout import PackedMatrix


@dataclass(frozen=True, slots=True)
class Linear:
    """`y = x W^T + b` with `weight` `[out, in]` and `bias` `[out]`, both in the compute dtype.

    Args:
        mapped: the weight is still the file's memory, which a copy would double.
        outputs: how many there are, where the weight has more rows than that.
        host: where the weight lies in the machine's memory; a product of many rows reads it more than once.
    """

    weight: Tensor
    bias: Tensor | None = None
    mapped: bool = False
    outputs: int | None = None
    host: Hosted[Linear] | None = None

    @property
    def bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, in]` -> `[tokens, out]`."""
        if self.host is not None and len(x) > MAX_ROWS:
            return self.host.fetched()(x)
        return functional.linear(x, self.weight, self.bias)[:, : self.outputs]

    def in_whole_rows(self) -> Linear:
        """The same with its outputs filled up to a multiple of 8 by rows of zeros.

        Results of 16-bit products then begin at multiples of 16 bytes, which the fast kernels of cuBLAS need.
        """
        missing = -len(self.weight) % 8
        if not missing:
            return self
        bias = None if self.bias is None else functional.pad(self.bias, (0, missing))
        weight = functional.pad(self.weight, (0, 0, 0, missing))
        return Linear(weight, bias, outputs=len(self.weight))


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Layers with one input, their outputs one after the other, where their weights cannot be joined.

    That is so for weights of a mapped file, which joining would copy, and for quantized ones beside float ones.
    """

    parts: tuple[Linear | QuantizedLinear, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, in]` -> `[tokens, sum of out]`."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


Joined = Linear | QuantizedLinear | SideBySide


def is_whole(part: Joined) -> TypeGuard[QuantizedLinear]:
    """Whether a part is quantized, and none of its outputs only fill up a tile."""
    return isinstance(part, QuantizedLinear) and all(
        matrix.outputs == count for matrix, count in zip(part.matrices, part.outputs, strict=True)
    )


def takes_rows_alike(part: Joined) -> bool:
    """Whether each of up to 8 rows comes to the same, to the last bit, however many there are."""
    if isinstance(part, SideBySide):
        return all(takes_rows_alike(one) for one in part.parts)
    return isinstance(part, QuantizedLinear) and part.prepared


def permutation_of(part: Joined, tokens: int) -> Tensor | None:
    """See `QuantizedLinear.permutation`; `None` of all others."""
    return part.permutation(tokens) if isinstance(part, QuantizedLinear) else None


def multiplied(part: Joined, x: Tensor | Permuted) -> Tensor:
    """`part(x)`, of an x that is `Permuted` only where the part has a permutation."""
    if isinstance(x, Permuted):
        assert isinstance(part, QuantizedLinear)
        return part(x)
    return part(x)


def outputs_of(part: Linear | QuantizedLinear) -> int:
    """Without those that only fill up a tile or a row."""
    return sum(part.outputs) if isinstance(part, QuantizedLinear) else part.outputs or len(part.weight)


def only_matrix(part: Joined) -> PackedMatrix | None:
    """The matrix of a part that has one; `None` of parts that the kernels do not multiply."""
    return part.matrices[0] if is_whole(part) and len(part.matrices) == 1 else None


def join(parts: Sequence[Linear | QuantizedLinear]) -> Joined:
    """One layer for several that read the same input: fewer, larger products."""
    quantized = [part for part in parts if isinstance(part, QuantizedLinear)]
    if len(quantized) == len(parts):
        return join_quantized(quantized)
    dense = [part for part in parts if isinstance(part, Linear) and not part.mapped]
    if len(dense) < len(parts):
        return SideBySide(tuple(parts))
    biases = [part.bias for part in dense if part.bias is not None]
    return Linear(torch.cat([part.weight for part in dense]), torch.cat(biases) if biases else None)
