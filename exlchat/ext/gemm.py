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

    def __init__(
        self,
        multiply: Callable[..., None],
        find_permutation: Callable[..., None],
        matrices: Sequence[PackedMatrix],
        room: int,
    ) -> None:
        first = matrices[0]
        self._multiply, self._find_permutation = multiply, find_permutation
        self._matrices = tuple(matrices)
        self._columns = sum(matrix.outputs for matrix in matrices)
        self._features, self._stored, self._device = first.features, first.stored, first.words.device
        blocks = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._partial = blocks * c.GEMM_BLOCK_BYTES
        self._arrived = torch.zeros(blocks * c.GEMM_WARPS, dtype=torch.int32, device=self._device)
        self._job = c.CGemm(matrices=len(matrices), blocks=blocks, room=room, y_stride=self._columns)
        self._job.arrived = self._arrived.data_ptr()
        self._permutations: dict[bool, Tensor] = {}
        for index, matrix in enumerate(matrices):
            self._job.matrix[index] = c_matrix(matrix)

    def __call__(self, x: Tensor, *, permuted: bool = False) -> Tensor:
        """float16 `[rows, features]` -> float16 `[rows, columns]`: `x W + b`.

        Args:
            permuted: each feature is where `permutation` says, not in its own order.

        Raises:
            ValueError: x is of another device, dtype, shape or layout, or has too many rows.
        """
        self._check(x)
        y = torch.empty(len(x), self._columns, dtype=torch.float16, device=self._device)
        if len(x):
            self._run(x, y, permuted=permuted)
        return y

    def permutation(self, rows: int) -> Tensor | None:
        """int16 (holding uint16) `[features]`: where in a row of x a product of so many rows reads each feature.

        `None` where some stored rows take no feature.
        """
        if self._features != self._stored or self._job.room:
            return None
        many = rows > c.GEMM_PAIRED_ROWS
        if many not in self._permutations:
            permutation = torch.empty(self._features, dtype=torch.int16, device=self._device)
            self._job.rows = rows
            self._find_permutation(c.address(self._job), permutation.data_ptr(), _stream())
            # Kernels read such constants before those in front of them have ended.
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
            self._permutations[many] = permutation
        return self._permutations[many]

    def _check(self, x: Tensor) -> None:
        check("x", x, torch.float16, (len(x), self._features))
        check_together(x, self._matrices[0].words)
        if len(x) > c.GEMM_MAX_ROWS:
            raise ValueError(f"x has {len(x)} rows; this kernel takes up to {c.GEMM_MAX_ROWS}")

    def _run(self, x: Tensor, y: Tensor, *, permuted: bool) -> None:
        job = self._job
        of_x = 0 if permuted else len(x) * self._stored * 2
        # One buffer: sums of blocks, then x in stored order.
        scratch = torch.empty(self._partial + of_x, dtype=torch.uint8, device=self._device)
        job.partial = scratch.data_ptr()
        job.x, job.x_features = (x.data_ptr(), None) if permuted else (scratch.data_ptr() + self._partial, x.data_ptr())
        job.y, job.rows = y.data_ptr(), len(x)
        self._multiply(c.address(job), _stream())


class RowProducts:
    def __init__(self, library: Library) -> None:
        self._gemm, self._gemm_permutation = library.function("exl_gemm"), library.function("exl_gemm_permutation")

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
        return RowProduct(self._gemm, self._gemm_permutation, matrices, room)


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream
