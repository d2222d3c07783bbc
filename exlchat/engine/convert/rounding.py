"""Rounding of whole matrices: errors are handed on to later rows, then codes and scales are improved one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.convert.scales import Scales, halves, refit, search
from exlchat.engine.convert.steps import Steps
from exlchat.engine.formats import exl2
from exlchat.llm.info import ModelError

Layout = Sequence[tuple[int, int]]
"""Bits and rows of each group of a matrix, in stored order: `sections.group_sizes`."""

# Floats of a matrix's rows that are held at once, a copy for each width: the head of an 8B has 2^29. Whatever the card:
# products of other shapes are rounded otherwise, and a conversion may go on beside other programs.
_AT_ONCE = 2**29
_DAMP = 0.02
_TRIES = 10
_PASSES = 3
# Of the loss that passes minimise, relative to the mean of its diagonal: for inputs that hardly occur.
_RIDGE = 0.01


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of what a matrix reads, its features in stored order.

    Args:
        order: int64 `[K]`, the input feature of each stored row: those with the largest mean square first.
        moments: float32 `[K, K]`, the mean of `x x^T`.
        upper: float32 `[K, K]`, the upper Cholesky factor of its damped inverse.
    """

    order: Tensor
    moments: Tensor
    upper: Tensor


def statistics(moments: Tensor, name: str) -> Statistics:
    """Of the mean `[K, K]` of `x x^T`, its features in the model's order.

    Args:
        name: of the layer, for the error.

    Raises:
        ModelError: it has no inverse, whatever is added to its diagonal.
    """
    diagonal = moments.diagonal()
    wrong = int((~moments.isfinite()).any(1).sum())
    if wrong:
        raise ModelError(f"{name}: {wrong} of its {len(moments)} inputs are no numbers on the calibration text")
    order = diagonal.argsort(descending=True, stable=True)
    sorted_moments = moments[order][:, order]
    mean = float(sorted_moments.diagonal().double().mean()) or 1.0
    dead = sorted_moments.diagonal() == 0
    damp = _DAMP * mean
    for _ in range(_TRIES):
        damped = sorted_moments.double()
        damped.diagonal().add_(damp)
        damped.diagonal()[dead] = mean
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            # Each takes 6.6 GB where 28,672 features are read.
            del damped
            inverse = torch.cholesky_inverse(lower)
            del lower
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not int(failed):
                return Statistics(order, sorted_moments, upper.float())
        damp *= 2
    raise ModelError(
        f"{name}: what it reads on the calibration text gives no matrix that can be inverted; give more text"
    )


def losses(
    steps: Steps,
    weight: Tensor,
    stats: Statistics,
    importance: Tensor,
    parts: Sequence[int],
    *,
    widths: Sequence[int],
    size: int,
) -> Tensor:
    """What each group would lose at each width, were all groups of that width: `[B, G, parts]`, on the CPU.

    Args:
        weight: float32 `[K, N]` in stored order, of one matrix or of several that read the same, side by side.
        importance: float32 `[N]`, the loss of each output's squared error.
        parts: columns of each matrix.
        widths: B bits.
        size: rows of a group.
    """
    together = max(_AT_ONCE // weight.numel(), 1)
    return torch.cat(
        [
            _losses(steps, weight, stats, importance, parts, widths=widths[first : first + together], size=size)
            for first in range(0, len(widths), together)
        ]
    )


def _losses(
    steps: Steps,
    weight: Tensor,
    stats: Statistics,
    importance: Tensor,
    parts: Sequence[int],
    *,
    widths: Sequence[int],
    size: int,
) -> Tensor:
    rows = weight.unsqueeze(1).repeat(1, len(widths), 1)
    flat = rows.view(len(rows), -1)
    half = halves(widths, weight.device)
    found = []
    for first in range(0, len(weight), size):
        end = min(first + size, len(weight))
        inside = stats.upper[first:end, first:end]
        chosen = search(steps, rows[first:end], inside, widths, importance=importance, parts=parts)
        scale = torch.stack([torch.cat([part.values for part in of_width]) for of_width in chosen])
        _, errors = steps.rounded(rows[first:end], inside, scale, half)
        flat[end:].addmm_(stats.upper[first:end, end:].T, errors.flatten(1), alpha=-1)
        lost = errors.square().sum(0) * importance
        found.append(torch.stack([part.sum(1) for part in torch.split(lost, list(parts), dim=1)], dim=1))
    return torch.stack(found, dim=1).cpu()


@dataclass(slots=True)
class Rounded:
    """A matrix in codes.

    Args:
        layout: its groups.
        codes: float32 `[K, N]`, signed, in stored order.
        scales: of each group.
        stats: of its input.
    """

    layout: Layout
    codes: Tensor
    scales: list[Scales]
    stats: Statistics

    def values(self) -> Tensor:
        """float32 `[K, N]` in stored order, as the reader multiplies and rounds them."""
        found = torch.empty_like(self.codes)
        row = 0
        for (_, rows), scales in zip(self.layout, self.scales, strict=True):
            found[row : row + rows] = (self.codes[row : row + rows] * scales.values).half()
            row += rows
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The five EXL2 tensors, on the CPU."""
        words, table = [], []
        row = word_row = 0
        for bits, rows in self.layout:
            codes = self.codes[row : row + rows].to(torch.int32) + (1 << (bits - 1))
            words.append(exl2.pack(codes, bits))
            table += [bits, word_row]
            row, word_row = row + rows, word_row + rows * bits // 32
        index = torch.stack([scales.index for scales in self.scales])
        found = {
            "q_weight": torch.cat(words),
            "q_invperm": self.stats.order.argsort().to(torch.int32),
            "q_scale": exl2.pack_scale_indices(index),
            "q_scale_max": torch.stack([scales.largest for scales in self.scales]).half(),
            "q_groups": torch.tensor(table, dtype=torch.int64).to(torch.int16),
        }
        return {name: tensor.cpu().contiguous() for name, tensor in found.items()}


def round_matrix(steps: Steps, weight: Tensor, stats: Statistics, layout: Layout, importance: Tensor) -> Rounded:
    """The codes of a matrix.

    Args:
        weight: float32 `[K, N]` in stored order.
        layout: widths in descending order.
        importance: float32 `[N]`: columns share the scales' maximum, so they are weighed against each other.
    """
    rows = weight.clone()
    codes = torch.empty_like(weight)
    scales: list[Scales] = []
    first = 0
    for bits, size in layout:
        end = first + size
        inside = stats.upper[first:end, first:end]
        group = rows[first:end].unsqueeze(1)
        found = search(steps, group, inside, [bits], importance=importance, parts=[weight.shape[1]])[0][0]
        of_group, errors = steps.rounded(group, inside, found.values[None], halves([bits], rows.device))
        codes[first:end] = of_group[:, 0]
        rows[end:].addmm_(stats.upper[first:end, end:].T, errors[:, 0], alpha=-1)
        scales.append(found)
        first = end
    del rows
    rounded = Rounded(layout, codes, scales, stats)
    _improve(steps, rounded, weight, importance)
    return rounded


def lost(rounded: Rounded, weight: Tensor) -> tuple[float, float]:
    """Mean square of what a matrix gives wrong on the calibration text, and of what it gives."""
    moments = rounded.stats.moments
    error = rounded.values().sub_(weight)
    return float((moments @ error).mul_(error).sum()), float((moments @ weight).mul_(weight).sum())


def _improve(steps: Steps, rounded: Rounded, weight: Tensor, importance: Tensor) -> None:
    """Coordinate descent: scales with codes held, then each row's codes with all others held. No step loses."""
    curve = rounded.stats.moments.clone()
    curve.diagonal().add_(_RIDGE * float(curve.diagonal().mean()))
    gradient = curve @ rounded.values().sub_(weight)
    for _ in range(_PASSES):
        first = 0
        for number, (bits, rows) in enumerate(rounded.layout):
            group = slice(first, first + rows)
            before = (rounded.codes[group] * rounded.scales[number].values).half().float()
            scales = refit(
                rounded.codes[group], gradient[group], curve[group, group], rounded.scales[number], importance
            )
            start = gradient[group]
            if scales is not rounded.scales[number]:
                after = (rounded.codes[group] * scales.values).half().float()
                start = start + curve[group, group] @ (after - before)
            steps.improve(rounded.codes[group], start, curve[group, group], scales.values, 1 << (bits - 1))
            rounded.scales[number] = scales
            after = (rounded.codes[group] * scales.values).half().float()
            gradient.addmm_(curve[:, group], after - before)
            first += rows
