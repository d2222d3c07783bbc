"""The converter's steps that go row by row, for all columns at once. `engine.convert.steps` has them in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.library import Library

_ROWS = 32


class RoundingKernels:
    def __init__(self, library: Library) -> None:
        self._hand_on = library.function("exl_hand_on")
        self._improve = library.function("exl_improve")

    def hand_on(
        self,
        rows: Tensor,
        upper: Tensor,
        scale: Tensor,
        half: Tensor,
        losses: Tensor,
        *,
        codes: Tensor | None = None,
        errors: Tensor | None = None,
        halved: bool = False,
    ) -> Job:
        """Rows of a group rounded one behind the other, with several scales for each column.

        Args:
            rows: float32 `[size, batch, columns]`; size a multiple of 32, at most 128.
            upper: float32 `[size, size]`.
            scale: float32 `[batch, candidates, columns]`.
            half: float32 `[batch]`: codes lie between `-half` and `half - 1`.
            losses: float32 `[batch, candidates, columns]`, takes the sums of squared errors.
            codes, errors: float32 `[size, batch, candidates, columns]`, where they are wanted.
            halved: products are rounded to float16.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        size, batch, columns = rows.shape
        candidates = scale.shape[1]
        _check_size(size)
        check("rows", rows, torch.float32, (size, batch, columns))
        check("upper", upper, torch.float32, (size, size))
        check("scale", scale, torch.float32, (batch, candidates, columns))
        check("half", half, torch.float32, (batch,))
        check("losses", losses, torch.float32, (batch, candidates, columns))
        check_on_gpu(rows=rows)
        tensors = [rows, upper, scale, half, losses]
        job = c.CHandOn(rows=rows.data_ptr(), upper=upper.data_ptr(), scale=scale.data_ptr(), half=half.data_ptr())
        job.losses, job.halved = losses.data_ptr(), halved
        for name, tensor in (("codes", codes), ("errors", errors)):
            if tensor is not None:
                check(name, tensor, torch.float32, (size, batch, candidates, columns))
                setattr(job, name, tensor.data_ptr())
                tensors.append(tensor)
        check_together(*tensors)
        job.size, job.batch, job.candidates, job.columns = size, batch, candidates, columns
        return Job(self._hand_on, job, tuple(tensors))

    def improve(self, codes: Tensor, gradient: Tensor, curve: Tensor, scale: Tensor, half: int) -> Job:
        """Codes of a group become better ones in place, row by row.

        Args:
            codes: float32 `[size, columns]`, between `-half` and `half - 1`.
            gradient: float32 `[size, columns]`, of half the loss as it is before.
            curve: float32 `[size, size]`, symmetric.
            scale: float32 `[columns]`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        size, columns = codes.shape
        _check_size(size)
        check("codes", codes, torch.float32, (size, columns))
        check("gradient", gradient, torch.float32, (size, columns))
        check("curve", curve, torch.float32, (size, size))
        check("scale", scale, torch.float32, (columns,))
        check_on_gpu(codes=codes)
        tensors = codes, gradient, curve, scale
        check_together(*tensors)
        job = c.CImprove(codes=codes.data_ptr(), gradient=gradient.data_ptr(), curve=curve.data_ptr())
        job.scale, job.half, job.size, job.columns = scale.data_ptr(), half, size, columns
        return Job(self._improve, job, tensors)


def _check_size(size: int) -> None:
    if size % _ROWS or not _ROWS <= size <= c.MOST_ROUNDED_ROWS:
        raise ValueError(f"a group of {size} rows; it must be a multiple of {_ROWS}, at most {c.MOST_ROUNDED_ROWS}")
