"""How EXL2 spreads bit widths over the rows of a matrix. No torch: the command line checks recipes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """`proportion` of a layer's rows at `bits`, in groups of `group_size` rows."""

    bits: int
    proportion: float
    group_size: int


EIGHT_BITS = (Section(8, 1.0, 128),)
SIX_BITS = (Section(8, 0.15, 128), Section(6, 0.85, 128))

# What the converter makes of its option head_bits (version 0.3.2).
HEAD_RECIPES = {
    2: (Section(4, 0.30, 32), Section(2, 0.70, 32)),
    3: (Section(4, 0.15, 32), Section(3, 0.85, 32)),
    4: (Section(6, 0.15, 32), Section(4, 0.85, 32)),
    5: (Section(6, 0.15, 128), Section(5, 0.85, 128)),
    6: SIX_BITS,
    8: EIGHT_BITS,
}


def group_sizes(features: int, sections: Sequence[Section]) -> list[tuple[int, int]]:
    """`(bits, rows)` of every group; the last is cut short at the end of the rows.

    Raises:
        ValueError: the sections do not fill the rows, or do not fill whole words.
    """
    if [section.bits for section in sections] != sorted((section.bits for section in sections), reverse=True):
        raise ValueError("sections must come in descending bit width")
    sizes: list[tuple[int, int]] = []
    remaining = features
    for section in sections:
        count = math.ceil(max(min(features * section.proportion, remaining), 0) / section.group_size)
        for _ in range(count):
            size = min(section.group_size, remaining)
            sizes.append((section.bits, size))
            remaining -= size
    if remaining > 0:
        raise ValueError(f"the sections leave {remaining} of {features} rows without a width")
    if any(size * bits % 32 or size == 0 for bits, size in sizes):
        raise ValueError(f"a group of {sizes[-1][1]} rows does not fill whole words")
    return sizes


def stored_bits(features: int, outputs: int, sections: Sequence[Section]) -> int:
    """Bits that a matrix takes on disk: codes, 4-bit scale indices, group table and permutation."""
    sizes = group_sizes(features, sections)
    return sum(bits * rows for bits, rows in sizes) * outputs + len(sizes) * (4 * outputs + 48) + 32 * features
