"""Scales of one group of rows: which of the 16 steps each column takes, and the group's largest.

A scale is not chosen by how well rows round alone, but by what is left when rounding errors are handed on inside the
group (LDLQ), which is how the group will be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.convert.steps import Steps

STEPS = 16
"""A column's scale is `(index + 1)^2 / 256` of the group's largest; indices have four bits."""

# Of half the range over half the codes, by width: where the least loss was found to lie, with room on both sides.
_FACTORS = {2: (0.35, 1.25), 3: (0.45, 1.2), 4: (0.55, 1.15), 5: (0.65, 1.1), 6: (0.7, 1.08), 8: (0.8, 1.04)}
_CANDIDATES = 16
_LARGEST = torch.linspace(0.62, 1.06, 23)
_REFITTED = torch.tensor([0.94, 0.97, 0.99, 1.0, 1.01, 1.03, 1.06])
# float16 holds 1/256 of it with three digits.
_SMALLEST = 2.0**-12


@dataclass(frozen=True, slots=True)
class Scales:
    """Of one group.

    Args:
        index: int64 `[N]`, 0 to 15.
        largest: float16 scalar.
    """

    index: Tensor
    largest: Tensor

    @property
    def values(self) -> Tensor:
        """float32 `[N]`, as the reader will compute them."""
        return steps_below(self.largest)[self.index]


def steps_below(largest: Tensor) -> Tensor:
    """The 16 scales of a group with this largest one, with the reader's two roundings: float32 `[..., 16]`."""
    unit = (largest.half().float() / 256).half().float()
    steps = torch.arange(1, STEPS + 1, device=largest.device, dtype=torch.float32).square()
    return (unit.unsqueeze(-1) * steps).half().float()


def search(
    steps: Steps, rows: Tensor, upper: Tensor, widths: Sequence[int], *, importance: Tensor, parts: Sequence[int]
) -> list[list[Scales]]:
    """The scales of a group at several widths.

    Args:
        rows: float32 `[R, B, N]`, the group's rows for each width.
        upper: float32 `[R, R]`, what hands errors on inside the group.
        widths: B bits.
        importance: float32 `[N]`, by which a column's loss counts.
        parts: columns of each matrix that stands side by side; each has scales of its own.

    Returns:
        for each width, the scales of each part.
    """
    limits = torch.tensor([_FACTORS[bits] for bits in widths], device=rows.device)
    factors = limits[:, :1] + (limits[:, 1:] - limits[:, :1]) * torch.linspace(0, 1, _CANDIDATES, device=rows.device)
    tops = torch.tensor([(1 << bits) - 1 for bits in widths], device=rows.device, dtype=torch.float32)
    base = rows.abs().amax(0).clamp_min(1e-8) / (tops[:, None] / 2)
    losses = steps.losses(rows, upper, factors[:, :, None] * base[:, None], halves(widths, rows.device))
    return [
        [
            _choose(losses[number][:, part], base[number][part], factors[number], importance[part])
            for part in _slices(parts)
        ]
        for number in range(len(widths))
    ]


def halves(widths: Sequence[int], device: torch.device) -> Tensor:
    """float32 `[B]`: codes lie between `-half` and `half - 1`."""
    return torch.tensor([1 << (bits - 1) for bits in widths], device=device, dtype=torch.float32)


def _choose(losses: Tensor, base: Tensor, factors: Tensor, importance: Tensor) -> Scales:
    """By the losses `[P, N]` of scales `factors * base`, between which they are interpolated."""
    best = (factors[losses.argmin(0)] * base).amax().clamp_min(_SMALLEST)
    largest = (best * _LARGEST.to(base.device)).half()
    scales = steps_below(largest)
    loss = _interpolated(losses, factors, scales.flatten()[:, None] / base).view(*scales.shape, -1)
    least, index = loss.min(1)
    chosen = int((least * importance).sum(1).argmin())
    return Scales(index[chosen], largest[chosen])


def _interpolated(losses: Tensor, factors: Tensor, at: Tensor) -> Tensor:
    """Losses `[P, N]` at other factors `[Q, N]`; outside of those tried they grow, as cut or coarse codes do."""
    first, last = factors[0], factors[-1]
    place = (at - first) / (last - first) * (len(factors) - 1)
    below = place.floor().clamp_(0, len(factors) - 2)
    left = losses.gather(0, below.long())
    right = losses.gather(0, below.long() + 1)
    inside = left + (place - below) * (right - left)
    above = losses[-1] * (at / last).square()
    under = losses[0] * (first / at).pow(4)
    return torch.where(at > last, above, torch.where(at < first, under, inside))


def refit(codes: Tensor, gradient: Tensor, curve: Tensor, scales: Scales, importance: Tensor) -> Scales:
    """Better scales for codes that stay, or the same ones.

    Args:
        codes: float32 `[R, N]`, signed.
        gradient: float32 `[R, N]`, of half the loss by each weight.
        curve: float32 `[R, R]`, the loss's matrix inside the group.
        importance: float32 `[N]`.
    """
    slope = (codes * gradient).sum(0)
    bend = (codes * (curve @ codes)).sum(0)
    largest = (scales.largest.float() * _REFITTED.to(codes.device)).clamp_min(_SMALLEST).half()
    change = steps_below(largest).unsqueeze(-1) - scales.values
    loss = change * (2 * slope + change * bend)
    least, index = loss.min(1)
    sums = (least * importance).sum(1)
    chosen = int(sums.argmin())
    return Scales(index[chosen], largest[chosen]) if float(sums[chosen]) < 0 else scales


def _slices(parts: Sequence[int]) -> list[slice]:
    ends = [sum(parts[: number + 1]) for number in range(len(parts))]
    return [slice(end - size, end) for size, end in zip(parts, ends, strict=True)]
