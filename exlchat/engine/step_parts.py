"""Which parts of a decoder the kernels of the decode step multiply."""

from __future__ import annotations

from typing import TypeGuard

from exlchat.engine.linear import Joined
from exlchat.engine.quantized_linear import QuantizedLinear
from exlchat.ext.layout import PackedMatrix


def is_whole(part: Joined) -> TypeGuard[QuantizedLinear]:
    """Whether a part is quantized, and none of its outputs only fill up a tile."""
    return isinstance(part, QuantizedLinear) and all(
        matrix.outputs == count for matrix, count in zip(part.matrices, part.outputs, strict=True)
    )


def only_matrix(part: Joined) -> PackedMatrix | None:
    """The matrix of a part that has one; `None` of parts that the kernels do not multiply."""
    return part.matrices[0] if is_whole(part) and len(part.matrices) == 1 else None
