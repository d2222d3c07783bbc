"""A linear layer whose weights stay quantized on the GPU.

One to eight rows go through the kernels of the decode step. More rows are few in a conversation but heavy: there the
weights are written out in float16, a part of the columns at a time, and multiplied by cuBLAS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix, to_stored

# Of the decode kernels.
MAX_ROWS = 8
# Weights that are written out at once, 128 MiB in float16: no matrix of an 8B but its head needs a second part, and
# the head sees one row of a prompt.
_SCRATCH_WEIGHTS = 64 * 2**20


class Launch(Protocol):
    """A prepared operation."""

    def launch(self, *, dependent: bool) -> None:
        """Runs it; `dependent`: it may start before the one before it ends."""


class MatrixKernels(Protocol):
    """What a quantized layer needs of the CUDA extension; tests put the references in its place."""

    def product(self, matrices: Sequence[PackedMatrix], x: Tensor, y: Tensor, kind: Literal["half"]) -> Launch:
        """`y` float16 `[rows, outputs]` becomes `x` float16 `[rows, stored]` times the matrices, plus their biases."""

    def dequantize(self, matrix: PackedMatrix, out: Tensor) -> None:
        """The weights into `out`, float16 `[features, outputs]`."""


class Scratch:
    """One float16 buffer that all layers of a model write their weights out to, one after the other.

    Args:
        device: where the model is.
        limit: weights that it holds at most, as far as whole column tiles allow.
    """

    def __init__(self, device: torch.device, limit: int = _SCRATCH_WEIGHTS) -> None:
        self._buffer = torch.empty(0, dtype=torch.float16, device=device)
        self._limit = limit

    def columns(self, features: int) -> int:
        """How many columns of so many features fit, a multiple of 16."""
        return max(self._limit // features // TILE_COLUMNS, 1) * TILE_COLUMNS

    def take(self, features: int, columns: int) -> Tensor:
        """float16 `[features, columns]`; what was taken before is overwritten."""
        size = features * columns
        if self._buffer.numel() < size:
            # The old one is given back before the new one is asked for.
            device = self._buffer.device
            self._buffer = torch.empty(0, dtype=torch.float16, device=device)
            self._buffer = torch.empty(size, dtype=torch.float16, device=device)
        return self._buffer[:size].view(features, columns)


@dataclass(frozen=True)
class QuantizedLinear:
    """`y = x W + b` of one matrix, or of several that read the same x, their columns one behind the other.

    Args:
        matrices: as the kernels read them.
        outputs: real columns of each; EXL2 fills them up to a multiple of 32.
        kernels, scratch: of the model.
    """

    matrices: tuple[PackedMatrix, ...]
    outputs: tuple[int, ...]
    kernels: MatrixKernels
    scratch: Scratch

    @cached_property
    def _parts(self) -> tuple[tuple[tuple[int, PackedMatrix], ...], ...]:
        """What is written out at a time of each matrix, cut once: a prompt calls every layer many times."""
        return tuple(tuple(column_parts(matrix, self.scratch.columns(matrix.features))) for matrix in self.matrices)

    @property
    def bytes(self) -> int:
        """Of all that is kept on the device."""
        kept = [tensor for matrix in self.matrices for tensor in (matrix.words, matrix.gather, matrix.bias)]
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """float16 `[tokens, in]` -> float16 `[tokens, sum of out]`."""
        y = torch.empty(len(x), sum(self.outputs), dtype=torch.float16, device=x.device)
        places = torch.split(y, list(self.outputs), dim=1)
        for number, (matrix, place) in enumerate(zip(self.matrices, places, strict=True)):
            if len(x) <= MAX_ROWS:
                self._multiply(matrix, x, place)
                continue
            for start, part in self._parts[number]:
                self._write_out_and_multiply(part, x, place[:, start : start + part.outputs])
            if matrix.bias is not None:
                place.add_(matrix.bias[: place.shape[1]])
        return y

    def _multiply(self, matrix: PackedMatrix, x: Tensor, y: Tensor) -> None:
        product = torch.empty(len(x), matrix.outputs, dtype=torch.float16, device=x.device)
        self.kernels.product([matrix], to_stored(x, matrix), product, "half").launch(dependent=False)
        y.copy_(product[:, : y.shape[1]])

    def _write_out_and_multiply(self, part: PackedMatrix, x: Tensor, y: Tensor) -> None:
        weights = self.scratch.take(part.features, part.outputs)
        self.kernels.dequantize(part, weights)
        torch.mm(x, weights[:, : y.shape[1]], out=y)


def column_parts(matrix: PackedMatrix, columns: int) -> Iterator[tuple[int, PackedMatrix]]:
    """Parts of a matrix of at most `columns` columns, a multiple of 16, each with its first.

    They share its memory and have no bias.
    """
    for start in range(0, matrix.outputs, columns):
        end = min(start + columns, matrix.outputs)
        words = matrix.words[start // TILE_COLUMNS : end // TILE_COLUMNS]
        yield start, replace(matrix, outputs=end - start, words=words, bias=None)


def join_quantized(parts: Sequence[QuantizedLinear]) -> QuantizedLinear:
    """One layer for several that read the same input; nothing is copied."""
    matrices = tuple(matrix for part in parts for matrix in part.matrices)
    outputs = tuple(count for part in parts for count in part.outputs)
    return replace(parts[0], matrices=matrices, outputs=outputs)
