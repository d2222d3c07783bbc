"""A linear layer whose weights stay quantized on the GPU.

One to eight rows go through the kernels of the decode step, more rows through one that reads the codes once for up to
64 of them. Where that is slower, the weights are written out in float16, a part of the columns at a time, and
multiplied by cuBLAS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from exlchat.engine.cards.host_memory import Hosted
from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix, unsigned

# Of the decode kernels.
MAX_ROWS = 8
# Up to here `row_product` is the faster one on all cards: the products of a layer of an 8B with 4 bits took 384 us
# against 406 us at 256 rows before there were products for Hopper alone, which take 270 against 414, and 382 against
# 516 at 384 rows (one H200, `benchmarks/prompt_products.py`).
MEDIUM_ROWS = 256
# Weights that are written out at once, 128 MiB in float16: no matrix of an 8B but its head needs a second part, and
# the head sees one row of a prompt.
_SCRATCH_WEIGHTS = 64 * 2**20


class Launch(Protocol):
    @property
    def meets(self) -> bool:
        """Whether it takes part in an exchange with other cards."""

    def launch(self, *, dependent: bool) -> None:
        """Runs it; `dependent`: it may start before the one before it ends."""


class RowProduct(Protocol):
    """See `exlchat.ext.gemm.RowProduct`."""

    def __call__(self, x: Tensor, *, permuted: bool = False) -> Tensor: ...

    def permutation(self, rows: int) -> Tensor | None: ...


class MatrixKernels(Protocol):
    """What a quantized layer needs of the CUDA extension; tests put the references in its place."""

    def product(self, matrices: Sequence[PackedMatrix], x: Tensor, y: Tensor, kind: Literal["half"]) -> Launch:
        """`y` float16 `[rows, outputs]` becomes `x` float16 `[rows, stored]` times the matrices, plus their biases."""

    def row_product(self, matrices: Sequence[PackedMatrix]) -> RowProduct:
        """float16 `[rows, features]` -> float16 `[rows, outputs]`, times the matrices, plus their biases."""

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
            # All that is ever taken at once: captured prompts write where it is.
            most = max(size, self._limit)
            self._buffer = torch.empty(most, dtype=torch.float16, device=self._buffer.device)
        return self._buffer[:size].view(features, columns)


@dataclass(frozen=True, slots=True)
class Permuted:
    """float16 `[tokens, in]`, in the order of the layer that reads it: see `QuantizedLinear.permutation`."""

    values: Tensor


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring matrices of a layer that read one stored order: `matrices`, and the first of their columns."""

    column: int
    matrices: tuple[PackedMatrix, ...]


@dataclass(frozen=True, slots=True)
class _FewRows:
    """The product of one run for one number of rows, prepared: making a job costs four times what launching it does."""

    places: Tensor
    x: Tensor
    y: Tensor
    job: Launch


@dataclass(frozen=True)
class QuantizedLinear:
    """`y = x W + b` of one matrix, or of several that read the same x, their columns one behind the other.

    Args:
        matrices: as the kernels read them.
        outputs: real columns of each; EXL2 fills them up to a multiple of 32.
        kernels, scratch: of the model.
        prepared: whether the products of up to 8 rows are made ready and kept, each number of rows with tensors of its
            own. A prompt through 48 layers of 128 experts would fill gigabytes with them.
        host: where the matrices lie in the machine's memory; more than 8 rows would read them more than once.
    """

    matrices: tuple[PackedMatrix, ...]
    outputs: tuple[int, ...]
    kernels: MatrixKernels
    scratch: Scratch
    prepared: bool = True
    host: Hosted[QuantizedLinear] | None = None
    _few_rows: dict[int, list[_FewRows]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def runs(self) -> list[Run]:
        runs: list[Run] = []
        column = 0
        for matrix in self.matrices:
            if runs and torch.equal(runs[-1].matrices[0].gather, matrix.gather):
                runs[-1] = replace(runs[-1], matrices=(*runs[-1].matrices, matrix))
            else:
                runs.append(Run(column, (matrix,)))
            column += matrix.outputs
        return runs

    @cached_property
    def _parts(self) -> list[list[tuple[int, PackedMatrix]]]:
        """What is written out at a time of each matrix, cut once: a prompt calls every layer many times."""
        return [list(column_parts(matrix, self.scratch.columns(matrix.features))) for matrix in self.matrices]

    @property
    def bytes(self) -> int:
        kept = [(matrix.words, matrix.scales, matrix.gather, matrix.bias) for matrix in self.matrices]
        return sum(tensor.nbytes for tensors in kept for tensor in tensors if tensor is not None)

    def permutation(self, tokens: int) -> Tensor | None:
        """int16 (holding uint16) `[in]`: where in a row of x a product of so many tokens reads each feature.

        For whoever can give it so, as `Permuted`; `None` where it is read in its own order.
        """
        if not MAX_ROWS < tokens <= MEDIUM_ROWS or self.host is not None or len(self.runs) > 1:
            return None
        return self._row_products[0].permutation(tokens)

    def __call__(self, x: Tensor | Permuted) -> Tensor:
        """Float `[tokens, in]` -> float16 `[tokens, sum of out]`. Of a bfloat16 model it gets bfloat16."""
        if isinstance(x, Permuted):
            return self._real_columns(self._row_products[0](x.values, permuted=True))
        if self.host is not None and len(x) > MAX_ROWS:
            return self.host.fetched()(x)
        x = x.half()
        if len(x) > MEDIUM_ROWS:
            return self._write_out_and_multiply(x)
        if len(x) > MAX_ROWS or not self.prepared:
            parts = [multiply(x.contiguous()) for multiply in self._row_products]
            return self._real_columns(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return self._multiply(x)

    @cached_property
    def _row_products(self) -> list[RowProduct]:
        return [self.kernels.row_product(run.matrices) for run in self.runs]

    def _multiply(self, x: Tensor) -> Tensor:
        if len(x) not in self._few_rows:
            self._few_rows[len(x)] = [self._prepare(run, len(x), x.device) for run in self.runs]
        for product in self._few_rows[len(x)]:
            product.x.index_copy_(1, product.places, x)
            product.job.launch(dependent=False)
        return self._real_columns(torch.cat([product.y for product in self._few_rows[len(x)]], dim=1))

    def _real_columns(self, y: Tensor) -> Tensor:
        if y.shape[1] == sum(self.outputs):
            return y
        columns = torch.split(y, [matrix.outputs for matrix in self.matrices], dim=1)
        return torch.cat([part[:, :count] for part, count in zip(columns, self.outputs, strict=True)], dim=1)

    def _prepare(self, run: Run, rows: int, device: torch.device) -> _FewRows:
        first = run.matrices[0]
        # Zeros, because no feature reaches rows that take none.
        x = torch.zeros(rows, first.stored, dtype=torch.float16, device=device)
        columns = sum(matrix.outputs for matrix in run.matrices)
        y = torch.empty(rows, columns, dtype=torch.float16, device=device)
        return _FewRows(unsigned(first.scatter), x, y, self.kernels.product(run.matrices, x, y, "half"))

    def _write_out_and_multiply(self, x: Tensor) -> Tensor:
        y = torch.empty(len(x), sum(self.outputs), dtype=torch.float16, device=x.device)
        places = torch.split(y, list(self.outputs), dim=1)
        for matrix, parts, place in zip(self.matrices, self._parts, places, strict=True):
            for start, part in parts:
                weights = self.scratch.take(part.features, part.outputs)
                self.kernels.dequantize(part, weights)
                columns = place[:, start : start + part.outputs]
                torch.mm(x, weights[:, : columns.shape[1]], out=columns)
            if matrix.bias is not None:
                place.add_(matrix.bias[: place.shape[1]])
        return y


def column_parts(matrix: PackedMatrix, columns: int) -> Iterator[tuple[int, PackedMatrix]]:
    """Parts of a matrix of at most `columns` columns, a multiple of 16, each with its first.

    They share its memory and have no bias.
    """
    for start in range(0, matrix.outputs, columns):
        end = min(start + columns, matrix.outputs)
        tiles = slice(start // TILE_COLUMNS, end // TILE_COLUMNS)
        words, scales = matrix.words[tiles], matrix.scales[tiles]
        yield start, replace(matrix, outputs=end - start, words=words, scales=scales, bias=None)


def split_quantized(layer: QuantizedLinear, outputs: tuple[int, ...]) -> QuantizedLinear:
    """The same with several matrices in place of its only one, where whole column tiles allow it; nothing is copied.

    Args:
        outputs: columns of each.
    """
    (matrix,) = layer.matrices
    if layer.outputs != (matrix.outputs,) or any(count % TILE_COLUMNS for count in outputs):
        return layer
    parts, start = [], 0
    for count in outputs:
        tiles = slice(start // TILE_COLUMNS, (start + count) // TILE_COLUMNS)
        bias = None if matrix.bias is None else matrix.bias[start : start + count]
        words, scales = matrix.words[tiles], matrix.scales[tiles]
        parts.append(replace(matrix, outputs=count, words=words, scales=scales, bias=bias))
        start += count
    return replace(layer, matrices=tuple(parts), outputs=outputs)


def join_quantized(parts: Sequence[QuantizedLinear]) -> QuantizedLinear:
    """One layer for several that read the same input; nothing is copied."""
    matrices = tuple(matrix for part in parts for matrix in part.matrices)
    outputs = tuple(count for part in parts for count in part.outputs)
    return replace(parts[0], matrices=matrices, outputs=outputs)
