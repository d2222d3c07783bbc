"""Products of many rows with quantized matrices, which run at once, on torch's current stream.

`tests/ext/reference.py` defines what they compute, of x in stored order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import check, check_on_gpu, check_together
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import Library
from exlchat.ext.products import c_matrix, check_matrices


class RowProduct:
    """The product of up to 4096 rows with up to three matrices of one stored order, prepared.

    Made by `RowProducts.row_product`; keeps the matrices alive.
    """

    def __init__(self, function: Callable[..., None], matrices: Sequence[PackedMatrix], room: int) -> None:
        first = matrices[0]
        self._function = function
        self._matrices = tuple(matrices)
        self._columns = sum(matrix.outputs for matrix in matrices)
        self._features, self._stored, self._device = first.features, first.stored, first.words.device
        blocks = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._partial = blocks * c.GEMM_BLOCK_BYTES
        self._arrived = torch.zeros(blocks * c.GEMM_WARPS, dtype=torch.int32, device=self._device)
        self._job = c.CGemm(matrices=len(matrices), blocks=blocks, room=room, y_stride=self._columns)
        self._job.arrived = self._arrived.data_ptr()
        for index, matrix in enumerate(matrices):
            self._job.matrix[index] = c_matrix(matrix)

    def __call__(self, x: Tensor) -> Tensor:
        """float16 `[rows, features]`, in the order of the features -> float16 `[rows, columns]`: `x W + b`.

        Raises:
            ValueError: x is of another device, dtype, shape or layout, or has too many rows.
        """
        rows, job = len(x), self._job
        check("x", x, torch.float16, (rows, self._features))
        check_together(x, self._matrices[0].words)
        if rows > c.GEMM_MAX_ROWS:
            raise ValueError(f"x has {rows} rows; this kernel takes up to {c.GEMM_MAX_ROWS}")
        y = torch.empty(rows, self._columns, dtype=torch.float16, device=self._device)
        if rows == 0:
            return y
        # One buffer: sums of parts, then x in stored order.
        scratch = torch.empty(self._partial + rows * self._stored * 2, dtype=torch.uint8, device=self._device)
        job.partial = scratch.data_ptr()
        job.x = scratch.data_ptr() + self._partial
        job.x_features, job.y, job.rows = x.data_ptr(), y.data_ptr(), rows
        self._function(c.address(job), torch.cuda.current_stream().cuda_stream)
        return y


class RowProducts:
    def __init__(self, library: Library) -> None:
        self._gemm = library.function("exl_gemm")

    def row_product(self, matrices: Sequence[PackedMatrix], *, room: int = 0) -> RowProduct:
        """`y = x W + b` for up to three matrices with one stored order, their columns side by side.

        Args:
            room: bytes of shared memory that a block may take, as on cards that have less; 0: all there is.

        Raises:
            ValueError: matrices that do not go together, or not on a GPU.
        """
        check_matrices(matrices)
        check_on_gpu(weights=matrices[0].words)
        tensors = (tensor for m in matrices for tensor in (m.words, m.scales, m.gather, m.bias))
        check_together(*(tensor for tensor in tensors if tensor is not None))
        return RowProduct(self._gemm, matrices, room)
