"""The operations of the CUDA extension, typed and checked: one function each, launched on torch's current stream.

Making a job checks device, dtype, shape and contiguity once; launching it costs a few microseconds and is what a CUDA
graph captures. `reference.py` defines what each operation computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix
from exlchat.ext.library import Library

Output = Literal["half", "add", "gated", "float"]

_OUTPUTS: dict[Output, tuple[int, torch.dtype]] = {
    "half": (c.Y_HALF, torch.float16),
    "add": (c.Y_ADD, torch.float32),
    "gated": (c.Y_GATED, torch.float16),
    "float": (c.Y_FLOAT, torch.float32),
}
MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm that a product applies to its input: `weight` float16 `[features]`."""

    weight: Tensor
    eps: float


class Job:
    """A checked launch. Keeps the tensors that it points to alive."""

    def __init__(self, function: Callable[..., None], structure: Any, tensors: tuple[Tensor, ...]) -> None:
        self._function = function
        self._structure = structure
        self._argument = c.address(structure)
        self._tensors = tensors

    def launch(self, *, dependent: bool) -> None:
        """On the current stream. `dependent`: may start before its predecessor ends (sm_90 and later)."""
        self._function(self._argument, dependent, torch.cuda.current_stream().cuda_stream)


class Kernels:
    """The functions of one open library."""

    def __init__(self, library: Library) -> None:
        self._gemv = library.function("exl_gemv")
        self._dequantize = library.function("exl_dequantize")
        self._attention = library.function("exl_attention")
        self._embed = library.function("exl_embed")

    def gemv(
        self, matrices: Sequence[PackedMatrix], x: Tensor, y: Tensor, output: Output, *, norm: Norm | None = None
    ) -> Job:
        """`y = x W` for 1 to 8 rows and up to three matrices whose columns stand side by side.

        Args:
            x: float16 `[rows, features]`; with a norm float32 `[1, features]`.
            y: `[rows, columns]`: float16 for `half`, float32 for `float` and for `add`, which adds to it. `gated` is
                `silu(x W0) * (x W1)` of exactly two matrices, float16.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        kind, dtype = _OUTPUTS[output]
        features, rows = matrices[0].features, x.shape[0]
        columns = matrices[0].outputs if output == "gated" else sum(matrix.outputs for matrix in matrices)
        _check("x", x, torch.float16 if norm is None else torch.float32, (rows, features))
        _check("y", y, dtype, (rows, columns))
        if not 1 <= rows <= MAX_ROWS or (norm is not None and rows != 1):
            raise ValueError(f"x has {rows} rows; these kernels take 1 to {MAX_ROWS}, and 1 with a norm")
        if not 1 <= len(matrices) <= c.MAX_MATRICES or (output == "gated" and len(matrices) != 2):
            raise ValueError(f"{len(matrices)} matrices; there can be 1 to {c.MAX_MATRICES}, and a gated product has 2")
        _check_on_gpu(x=x, y=y, weights=matrices[0].words)
        job = c.CGemv(x=x.data_ptr(), y=y.data_ptr(), matrices=len(matrices), rows=rows, y_kind=kind)
        tensors = [x, y]
        if norm is not None:
            _check("norm", norm.weight, torch.float16, (features,))
            job.norm, job.eps, job.x_kind = norm.weight.data_ptr(), norm.eps, c.X_NORM
            tensors.append(norm.weight)
        for index, matrix in enumerate(matrices):
            if matrix.features != features:
                raise ValueError(f"the matrices have {features} and {matrix.features} input features")
            job.matrix[index] = c_matrix(matrix)
            tensors += [matrix.words, matrix.scale_index, matrix.scale_max, matrix.gather]
        return Job(self._gemv, job, tuple(tensors))

    def dequantize(self, matrix: PackedMatrix, out: Tensor) -> None:
        """Writes the weights, float16 `[features, outputs]`, into `out`."""
        _check("out", out, torch.float16, (matrix.features, matrix.outputs))
        _check_on_gpu(out=out, weights=matrix.words)
        self._dequantize(c.address(c_matrix(matrix)), out.data_ptr(), torch.cuda.current_stream().cuda_stream)

    def attention(
        self, qkv: Tensor, out: Tensor, *, turns: Tensor, position: Tensor, keys: Tensor, values: Tensor, splits: int
    ) -> Job:
        """One new token attends to the cached ones and itself; its key and value are stored.

        Args:
            qkv: float16 `[heads + 2 * kv_heads, head_dim]`, before rotary positions.
            turns: float32 `[capacity, head_dim / 2, 2]`: cos and sin of each position.
            position: int32 `[1]`: how many tokens are cached.
            keys, values: float16 `[kv_heads, capacity, head_dim]` of this layer.
            out: float16 `[heads, head_dim]`.
            splits: blocks over which the tokens of one head are spread.
        """
        heads, head_dim = out.shape
        kv_heads, capacity, _ = keys.shape
        _check("qkv", qkv, torch.float16, (heads + 2 * kv_heads, head_dim))
        _check("turns", turns, torch.float32, (turns.shape[0], head_dim // 2, 2))
        _check("position", position, torch.int32, (1,))
        _check("keys", keys, torch.float16, (kv_heads, capacity, head_dim))
        _check("values", values, torch.float16, (kv_heads, capacity, head_dim))
        _check("out", out, torch.float16, (heads, head_dim))
        if turns.shape[0] < capacity:
            raise ValueError(f"turns has {turns.shape[0]} positions, the cache {capacity}")
        _check_on_gpu(qkv=qkv, turns=turns, position=position, keys=keys, values=values, out=out)
        partial = torch.empty(splits * heads * (head_dim + 2), device=qkv.device)
        tickets = torch.zeros(kv_heads, dtype=torch.int32, device=qkv.device)
        tensors = (qkv, turns, position, keys, values, out, partial, tickets)
        pointers = [tensor.data_ptr() for tensor in tensors]
        job = c.CAttention(*pointers, head_dim**-0.5, heads, kv_heads, head_dim, capacity, splits)
        return Job(self._attention, job, tensors)

    def embed(self, table: Tensor, token: Tensor, hidden: Tensor, *, dependent: bool) -> None:
        """`hidden` float32 `[1, width]` becomes row `token` (int64 `[1]`) of a float16 table."""
        _check("table", table, torch.float16, (table.shape[0], hidden.shape[1]))
        _check("token", token, torch.int64, (1,))
        _check("hidden", hidden, torch.float32, (1, table.shape[1]))
        _check_on_gpu(table=table, token=token, hidden=hidden)
        stream = torch.cuda.current_stream().cuda_stream
        self._embed(table.data_ptr(), token.data_ptr(), hidden.data_ptr(), table.shape[1], dependent, stream)


def c_matrix(matrix: PackedMatrix) -> c.CMatrix:
    """The C structure of a matrix; it points into the matrix's tensors."""
    structure = c.CMatrix(
        words=matrix.words.data_ptr(),
        scale_index=matrix.scale_index.data_ptr(),
        scale_max=matrix.scale_max.data_ptr(),
        gather=matrix.gather.data_ptr(),
        features=matrix.features,
        tiles=matrix.tiles,
        column_tiles=matrix.outputs // TILE_COLUMNS,
        words_per_column=matrix.words.shape[1],
        scales=len(matrix.scale_max),
        section_count=len(matrix.sections),
    )
    for index, part in enumerate(matrix.sections):
        structure.sections[index] = c.CSection(
            part.bits, part.tile, part.tiles, part.word, part.scale, part.rows_per_scale
        )
    return structure


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, {layout}; it must be {dtype} {shape}, contiguous"
        )


def _check_on_gpu(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise ValueError(f"{name} is on the {tensor.device}; the kernels work on a GPU")
