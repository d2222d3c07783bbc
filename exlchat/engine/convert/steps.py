"""The steps of rounding that go row by row: in plain torch, and on a card by kernels of their own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from exlchat.ext.rounding import RoundingKernels

# Floats of errors that are held at once while candidates are tried.
_AT_ONCE = 2**27


class Steps(Protocol):
    """All columns at once, of a group of 32, 64, 96 or 128 rows. Halves are of the codes: `-half` to `half - 1`."""

    def losses(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> Tensor:
        """Rows rounded with several scales, errors handed on to the rows below: sums of squared errors.

        Args:
            rows: float32 `[R, B, N]`.
            upper: float32 `[R, R]`.
            scale: float32 `[B, P, N]`.
            half: float32 `[B]`.

        Returns:
            float32 `[B, P, N]`.
        """

    def rounded(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        """The same with one scale `[B, N]`, products rounded to float16: codes and errors, float32 `[R, B, N]`."""

    def improve(self, codes: Tensor, gradient: Tensor, curve: Tensor, scale: Tensor, half: int) -> None:
        """Codes `[R, N]` become better ones in place, row by row.

        Args:
            gradient: float32 `[R, N]`, of half the loss as it is before.
            curve: float32 `[R, R]`, symmetric.
            scale: float32 `[N]`.
        """


class TorchSteps:
    """On any device; what the kernels are held against."""

    def losses(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> Tensor:
        found = torch.empty_like(scale)
        step = max(_AT_ONCE // (rows.shape[0] * scale.shape[0] * scale.shape[1]), 1)
        for first in range(0, rows.shape[2], step):
            part = slice(first, first + step)
            wide = rows[:, :, part].unsqueeze(2).expand(-1, -1, scale.shape[1], -1)
            _, errors = _handed_on(wide, upper, scale[:, :, part], half[:, None, None], halved=False)
            found[:, :, part] = errors.square_().sum(0)
        return found

    def rounded(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        return _handed_on(rows, upper, scale, half[:, None], halved=True)

    def improve(self, codes: Tensor, gradient: Tensor, curve: Tensor, scale: Tensor, half: int) -> None:
        changes = torch.empty_like(codes)
        for row in range(len(codes)):
            slope = gradient[row]
            if row:
                slope = slope + curve[row, :row] @ changes[:row]
            old = codes[row]
            # The nearest code to the least of a parabola: never a worse one than what is there.
            new = (old - slope / (curve[row, row] * scale)).round_().clamp_(-half, half - 1)
            changes[row] = (new * scale).half().float() - (old * scale).half().float()
            codes[row] = new


class KernelSteps:
    """On a card: each column is a thread, which keeps what it hands on in registers."""

    def __init__(self, kernels: RoundingKernels) -> None:
        self._kernels = kernels

    def losses(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> Tensor:
        found = torch.empty_like(scale)
        job = self._kernels.hand_on(rows.contiguous(), upper.contiguous(), scale.contiguous(), half, found)
        job.launch(dependent=False)
        return found

    def rounded(self, rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
        rows, one = rows.contiguous(), scale.unsqueeze(1).contiguous()
        codes = torch.empty(rows.shape[0], rows.shape[1], 1, rows.shape[2], device=rows.device)
        errors, losses = torch.empty_like(codes), torch.empty_like(one)
        job = self._kernels.hand_on(
            rows, upper.contiguous(), one, half, losses, codes=codes, errors=errors, halved=True
        )
        job.launch(dependent=False)
        return codes.squeeze(2), errors.squeeze(2)

    def improve(self, codes: Tensor, gradient: Tensor, curve: Tensor, scale: Tensor, half: int) -> None:
        job = self._kernels.improve(codes, gradient.contiguous(), curve.contiguous(), scale.contiguous(), half)
        job.launch(dependent=False)


def _handed_on(rows: Tensor, upper: Tensor, scale: Tensor, half: Tensor, *, halved: bool) -> tuple[Tensor, Tensor]:
    """Codes and errors, float32 of the shape of `rows`."""
    size, shape = len(rows), rows.shape[1:]
    codes = torch.empty(rows.shape, device=rows.device)
    errors = torch.empty(size, rows[0].numel(), device=rows.device)
    for row in range(size):
        wanted = rows[row]
        if row:
            wanted = wanted - (upper[:row, row] @ errors[:row]).view(shape)
        codes[row] = torch.minimum(torch.maximum((wanted / scale).round_(), -half), half - 1)
        product = codes[row] * scale
        errors[row] = ((wanted - (product.half() if halved else product)) / upper[row, row]).flatten()
    return codes, errors.view(rows.shape)
