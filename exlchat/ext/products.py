"""Products of activations with quantized matrices, and the embedding that starts a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.exchange import Exchange
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix
from exlchat.ext.library import Library
from exlchat.ext.plan import GemvPlan, make_plan

Kind = Literal["half", "float", "gated", "activated"]
Activation = Literal["silu", "gelu_tanh", "gelu_erf"]

_KINDS: dict[Kind, tuple[int, torch.dtype]] = {
    "half": (c.Y_HALF, torch.float16),
    "float": (c.Y_FLOAT, torch.float32),
    "gated": (c.Y_GATED, torch.float16),
    "activated": (c.Y_ACTIVATED, torch.float16),
}
ACTIVATIONS: dict[Activation, int] = {"silu": c.SILU, "gelu_tanh": c.GELU_TANH, "gelu_erf": c.GELU_ERF}
"""SiLU, and GELU by its approximation with tanh or by erf."""
_SCATTERED = ("gated", "activated")
MAX_ROWS = c.MAX_ROWS


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a residual stream still lacks where a norm stands behind the products that add to it.

    That norm needs the whole sum, so it is left to whoever reads the stream: the stream is `hidden + delta * scale`.

    Args:
        delta: float32 `[rows, width]`: what was added last, times the weights of the norm behind it.
        scale: float32 `[rows]`: 1 over the root mean square of what was added last. The product that reads the stream
            finds it, and leaves it here for the one that adds next.
    """

    delta: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Normed:
    """The input of a product behind an RMS norm, as a `Residual` leaves it.

    Args:
        values: float32 `[rows, stored]`: vectors times the norm's weights, in the stored order of the matrices. With
            `deferred` `[rows, stored, 2]`, of `hidden` and of `delta`.
        squares: float32 `[rows, width / 16]`: sums of squares of 16 neighbours of a vector each. With `deferred`
            `[rows, width / 16, 4]`: of `hidden`; of `hidden` times `delta`; of `delta`; of what was added itself.
        eps: of the norm, and of the one behind what was added.
        deferred: the same as the residual's.
        before: a norm stands before the product; without it x is the stream itself, which only a `deferred` one leaves.
    """

    values: Tensor
    squares: Tensor
    eps: float
    deferred: Deferred | None = None
    before: bool = True


@dataclass(frozen=True, slots=True)
class NormCopy:
    """What a residual leaves for the product after it.

    Args:
        values: as that product's `Normed` has them; zero where no feature stands.
        scatter: int16 `[width]`: the stored row of each feature of that product's matrices.
        weight: float16 `[width]`, the norm's; all 1 unless given.
    """

    values: Tensor
    scatter: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream.

    Args:
        hidden: float32 `[rows, width]`.
        squares: float32, as `Normed` has them.
        copies: at most three.
        exchange: what is added is a sum over cards; of one card alone unless given.
        multiplier: of what is added.
        deferred: a norm stands behind what is added.
        post_norm: float16 `[width]`, the weights of that norm; an embedding has none.
    """

    hidden: Tensor
    squares: Tensor
    copies: tuple[NormCopy, ...]
    exchange: Exchange | None = None
    multiplier: float = 1.0
    deferred: Deferred | None = None
    post_norm: Tensor | None = None


class Products:
    """The products of one open library.

    Args:
        room: bytes of shared memory that a block may take, as on cards that have less; 0: all there is.
    """

    def __init__(self, library: Library, *, room: int = 0) -> None:
        self._room = room
        self._gemv = library.function("exl_gemv")
        self._dequantize = library.function("exl_dequantize")
        self._embed = library.function("exl_embed")
        self._head = library.function("exl_head")
        self._plans: dict[object, tuple[GemvPlan, Tensor]] = {}

    def product(
        self,
        matrices: Sequence[PackedMatrix],
        x: Tensor | Normed,
        y: Tensor,
        kind: Kind,
        *,
        scatter: Tensor | None = None,
        activation: Activation = "silu",
    ) -> Job:
        """`y = x W + b` for 1 to 8 rows and up to three matrices with one stored order, their columns side by side.

        A row of y is the same to the last bit however many rows there are.

        Args:
            x: float16 `[rows, stored]`, or what a residual left.
            y: float16, or float32 for `float`; `[rows, columns]`, or `[rows, any]` with a scatter. Its rows may be
                parts of longer ones.
            kind: `gated` is `activation(x W0 + b0) * (x W1 + b1)` of exactly two matrices, `activated` is
                `activation(x W + b)`.
            scatter: int16 `[columns]`, where in y each column of a gated or activated product goes.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        number, dtype = _KINDS[kind]
        job, tensors = self._job(matrices, x, paired=kind == "gated")
        columns = matrices[0].outputs if kind == "gated" else sum(matrix.outputs for matrix in matrices)
        if kind == "gated" and (len(matrices) != 2 or matrices[1].outputs != columns):
            raise ValueError("a gated product has two matrices of equal width")
        _check_y(y, dtype, (job.rows, columns if scatter is None else y.shape[1]))
        check_on_gpu(y=y)
        job.y, job.y_kind, job.y_stride = y.data_ptr(), number, y.stride(0) if job.rows > 1 else y.shape[1]
        job.activation = ACTIVATIONS[activation]
        if scatter is not None:
            if kind not in _SCATTERED:
                raise ValueError("only a gated or activated product takes a scatter")
            check("scatter", scatter, torch.int16, (columns,))
            job.scatter = scatter.data_ptr()
            tensors.append(scatter)
        check_together(*tensors, y)
        return Job(self._gemv, job, (*tensors, y))

    def add_product(self, matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> Job:
        """`hidden += x W + b` for 1 to 8 rows, with everything that a residual leaves behind; see `product`."""
        if (residual.deferred is None) != (residual.post_norm is None):
            raise ValueError("a norm behind what is added has weights, and is deferred")
        if isinstance(x, Normed) and x.deferred is not residual.deferred:
            raise ValueError("x and what is added to are of one residual")
        job, tensors = self._job([matrix], x, paired=False)
        job.y_kind = c.Y_ADD
        job.residual = c_residual(residual, job.rows, matrix.outputs, tensors)
        check_together(*tensors)
        return Job(self._gemv, job, tuple(tensors), meets=residual.exchange is not None)

    def embed(self, table: Tensor, token: Tensor, residual: Residual | Tensor, multiplier: float = 1.0) -> Job:
        """`hidden` becomes the rows `token` (int64 `[rows]`) of a float16 table `[vocab, width]`, times a multiplier.

        Args:
            residual: with all that it leaves behind, or `hidden` alone, float32 `[rows, width]`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        hidden = residual if isinstance(residual, Tensor) else residual.hidden
        check("table", table, torch.float16, (table.shape[0], hidden.shape[1]))
        _check_rows(len(token), "token")
        rows, width = len(token), table.shape[1]
        check("token", token, torch.int64, (rows,))
        check_on_gpu(table=table, token=token)
        tensors = [table, token]
        job = c.CEmbed(table=table.data_ptr(), token=token.data_ptr(), width=width, rows=rows, multiplier=multiplier)
        if isinstance(residual, Tensor):
            check("hidden", hidden, torch.float32, (rows, width))
            job.residual.hidden = hidden.data_ptr()
            tensors.append(hidden)
        else:
            job.residual = c_residual(residual, rows, width, tensors)
        check_together(*tensors)
        return Job(self._embed, job, tuple(tensors))

    def head_product(self, weight: Tensor, x: Tensor | Normed, y: Tensor) -> Job:
        """`y = x W^T` for 1 to 8 rows and weights that are not quantized; see `product`.

        Args:
            weight: float16 `[outputs, width]`; width a multiple of 32.
            x: `[rows, width]`, in the order of the features; float16, or what a residual left.
            y: float32 `[rows, outputs]`; its rows may be parts of longer ones.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        values = x if isinstance(x, Tensor) else x.values
        (outputs, width), rows = weight.shape, len(values)
        _check_rows(rows, "x")
        if width % c.HEAD_INPUTS:
            raise ValueError(f"weight has {width} inputs; these kernels take multiples of {c.HEAD_INPUTS}")
        check("weight", weight, torch.float16, (outputs, width))
        _check_y(y, torch.float32, (rows, outputs))
        tensors = [values, weight, y]
        job = c.CHead(x=values.data_ptr(), weight=weight.data_ptr(), y=y.data_ptr(), width=width, outputs=outputs)
        job.rows, job.y_stride, job.x_kind = rows, y.stride(0) if rows > 1 else outputs, c.X_HALF
        if isinstance(x, Normed):
            job.x_kind = check_normed(x, rows, width, width, tensors)
            job.squares, job.eps = x.squares.data_ptr(), x.eps
        else:
            check("x", x, torch.float16, (rows, width))
        check_on_gpu(x=values, weight=weight, y=y)
        check_together(*tensors)
        return Job(self._head, job, tuple(tensors))

    def dequantize(self, matrix: PackedMatrix, out: Tensor) -> None:
        """Writes the weights, float16 `[features, outputs]`, into `out`."""
        check("out", out, torch.float16, (matrix.features, matrix.outputs))
        check_on_gpu(out=out, weights=matrix.words)
        check_together(out, matrix.words, matrix.scales, matrix.gather)
        self._dequantize(c.address(c_matrix(matrix)), out.data_ptr(), torch.cuda.current_stream().cuda_stream)

    def _job(
        self, matrices: Sequence[PackedMatrix], x: Tensor | Normed, *, paired: bool
    ) -> tuple[c.CGemv, list[Tensor]]:
        check_matrices(matrices)
        stored = matrices[0].stored
        job = c.CGemv(matrices=len(matrices), room=self._room)
        if isinstance(x, Normed):
            tensors = [x.values]
            job.rows, job.width = len(x.values), matrices[0].features
            job.x_kind = check_normed(x, job.rows, stored, job.width, tensors)
            job.x, job.squares, job.eps = x.values.data_ptr(), x.squares.data_ptr(), x.eps
            if x.deferred is not None:
                job.scale = x.deferred.scale.data_ptr()
        else:
            check("x", x, torch.float16, (len(x), stored))
            job.x, job.rows = x.data_ptr(), len(x)
            tensors = [x]
        _check_rows(job.rows, "x")
        check_on_gpu(x=tensors[0], weights=matrices[0].words)
        plan, table = self._plan(matrices, paired=paired)
        job.plan, (job.blocks, job.plan_ints) = table.data_ptr(), table.shape
        job.columns, job.segments, job.x_rows = plan.columns, plan.segments, plan.x_rows
        job.x_spans[:] = plan.x_spans
        tensors.append(table)
        for index, matrix in enumerate(matrices):
            job.matrix[index] = c_matrix(matrix)
            tensors += [matrix.words, matrix.scales, matrix.gather]
            if matrix.bias is not None:
                tensors.append(matrix.bias)
        return job, tensors

    def _plan(self, matrices: Sequence[PackedMatrix], *, paired: bool) -> tuple[GemvPlan, Tensor]:
        """The plan of a product and its table on the device; products of equal structure share one."""
        device = matrices[0].words.device
        key = (device, paired, *((matrix.outputs, matrix.sections) for matrix in matrices))
        if key not in self._plans:
            blocks = torch.cuda.get_device_properties(device).multi_processor_count
            plan = make_plan(matrices, blocks=blocks, paired=paired)
            self._plans[key] = plan, plan.table.to(device)
        return self._plans[key]


def _check_rows(rows: int, name: str) -> None:
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"{name} has {rows} rows; these kernels take 1 to {MAX_ROWS}")


def _of_each(deferred: Deferred | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The last dimension of values and that of squares."""
    return ((), ()) if deferred is None else ((2,), (4,))


def check_normed(x: Normed, rows: int, stored: int, width: int, tensors: list[Tensor]) -> int:
    """The kind of x; adds what it points to beside `values`, to `tensors`."""
    pair, sums = _of_each(x.deferred)
    check("x", x.values, torch.float32, (rows, stored, *pair))
    check("squares", x.squares, torch.float32, (rows, width // 16, *sums))
    tensors.append(x.squares)
    if x.deferred is None:
        if not x.before:
            raise ValueError("x without a norm before the product is of a residual that defers")
        return c.X_NORM
    check("scale", x.deferred.scale, torch.float32, (rows,))
    tensors.append(x.deferred.scale)
    return c.X_JOIN_NORM if x.before else c.X_JOIN


def _check_y(y: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """As `check`, but rows may lie apart."""
    apart = y.ndim == 2 and y.shape[1] > 0 and y.stride(1) == 1 and y.stride(0) >= y.shape[1]
    if not apart or tuple(y.shape) != shape or y.dtype != dtype:
        check("y", y, dtype, shape)


def check_matrices(matrices: Sequence[PackedMatrix]) -> None:
    """Raises `ValueError` where matrices do not go into one product."""
    if not 1 <= len(matrices) <= c.MAX_MATRICES:
        raise ValueError(f"{len(matrices)} matrices; there can be 1 to {c.MAX_MATRICES}")
    for what, sizes in (("stored rows", [m.stored for m in matrices]), ("features", [m.features for m in matrices])):
        if len(set(sizes)) > 1:
            raise ValueError(f"matrices with {', '.join(map(str, sizes))} {what} in one product")
    for matrix in matrices:
        if matrix.bias is not None:
            check("bias", matrix.bias, torch.float16, (matrix.outputs,))


def c_matrix(matrix: PackedMatrix) -> c.CMatrix:
    """The C structure of a matrix; it points into the matrix's tensors."""
    structure = c.CMatrix(
        words=matrix.words.data_ptr(),
        scales=matrix.scales.data_ptr(),
        gather=matrix.gather.data_ptr(),
        bias=None if matrix.bias is None else matrix.bias.data_ptr(),
        features=matrix.features,
        stored=matrix.stored,
        column_tiles=matrix.outputs // TILE_COLUMNS,
        words_per_column=matrix.words.shape[1],
        scale_words_per_column=matrix.scales.shape[1],
        pieces=matrix.pieces,
        section_count=len(matrix.sections),
    )
    for index, part in enumerate(matrix.sections):
        structure.sections[index] = c.CSection(
            part.bits,
            part.scales == "plain",
            part.rows_per_scale,
            part.row,
            part.piece,
            part.pieces,
            part.word,
            part.piece_words,
            part.scale,
            part.scale_words,
        )
    return structure


def c_residual(residual: Residual, rows: int, width: int, tensors: list[Tensor]) -> c.CResidual:
    """The C structure of a residual; adds what it points to, to `tensors`."""
    deferred = residual.deferred
    pair, sums = _of_each(deferred)
    check("hidden", residual.hidden, torch.float32, (rows, width))
    check("squares", residual.squares, torch.float32, (rows, width // 16, *sums))
    check_on_gpu(hidden=residual.hidden, squares=residual.squares)
    if len(residual.copies) > c.MAX_MATRICES:
        raise ValueError(f"{len(residual.copies)} copies of a residual; there can be {c.MAX_MATRICES}")
    structure = c.CResidual(hidden=residual.hidden.data_ptr(), squares=residual.squares.data_ptr(), columns=width)
    structure.multiplier = residual.multiplier
    tensors += [residual.hidden, residual.squares]
    if deferred is not None:
        check("delta", deferred.delta, torch.float32, (rows, width))
        check("scale", deferred.scale, torch.float32, (rows,))
        structure.delta, structure.scale = deferred.delta.data_ptr(), deferred.scale.data_ptr()
        tensors += [deferred.delta, deferred.scale]
    if residual.post_norm is not None:
        check("post_norm", residual.post_norm, torch.float16, (width,))
        structure.post_norm = residual.post_norm.data_ptr()
        tensors.append(residual.post_norm)
    if residual.exchange is not None:
        peers = residual.exchange.peers
        if rows * width > peers.words:
            raise ValueError(f"{rows} rows of {width} words; cards exchange {peers.words} at once")
        structure.peers, structure.exchange = peers.table.data_ptr(), residual.exchange.number
        tensors.append(peers.table)
    for index, copy in enumerate(residual.copies):
        stored = copy.values.shape[1]
        check("values", copy.values, torch.float32, (rows, stored, *pair))
        check("scatter", copy.scatter, torch.int16, (width,))
        structure.copies[index] = c.CNormCopy(copy.values.data_ptr(), copy.scatter.data_ptr(), None, stored)
        tensors += [copy.values, copy.scatter]
        if copy.weight is not None:
            check("norm", copy.weight, torch.float16, (width,))
            structure.copies[index].weight = copy.weight.data_ptr()
            tensors.append(copy.weight)
    return structure
