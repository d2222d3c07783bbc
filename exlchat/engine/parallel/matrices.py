"""Rows and columns of a quantized matrix, as the kernels read them: what one card has of it.

Codes and scales are copied as they are, never rounded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.formats.packing import filled_sizes, rows_per_scale, sorted_rows
from exlchat.engine.layers.quantized_linear import column_parts
from exlchat.ext.layout import (
    NO_FEATURE,
    PIECE_ROWS,
    TILE_COLUMNS,
    LayoutSection,
    PackedMatrix,
    indexed_scales,
    plain_scales,
    section_codes,
    section_rows,
    section_scales,
    unsigned,
)
from exlchat.ext.tiles import pack_tiles

# What is unpacked at once, so that the transient copies of a large matrix stay small beside it.
_COLUMNS_AT_ONCE = 2048
_PIECES_AT_ONCE = 8


def take_columns(matrix: PackedMatrix, columns: Tensor) -> PackedMatrix:
    """Columns `[n]` in that order, filled up to a multiple of 16 by columns of zeros."""
    columns = columns.to(matrix.words.device)
    tiles = _whole_tiles(columns)
    # Behind the last column stands one of zeros.
    columns = functional.pad(columns, (0, -len(columns) % TILE_COLUMNS), value=matrix.outputs)
    if tiles is not None:
        words, scales = matrix.words[tiles], matrix.scales[tiles]
    else:
        words = torch.cat([_columns_of_codes(matrix, section, columns) for section in matrix.sections], dim=1)
        scales = torch.cat([_columns_of_scales(matrix, section, columns) for section in matrix.sections], dim=1)
    bias = None if matrix.bias is None else functional.pad(matrix.bias, (0, 1))[columns]
    return replace(matrix, outputs=len(columns), words=words, scales=scales, bias=bias)


def take_rows(matrix: PackedMatrix, features: Tensor) -> PackedMatrix:
    """The rows that take features `[n]`, of which number i becomes feature i.

    They keep the stored order. A scale stays with whichever of its rows are left, and these are filled up to whole
    blocks by rows without a feature.
    """
    features = features.to(matrix.words.device)
    numbers = torch.full((NO_FEATURE + 1,), NO_FEATURE, device=matrix.words.device)
    numbers[features] = torch.arange(len(features), device=features.device)
    gather = numbers[unsigned(matrix.gather)]
    sections: list[LayoutSection] = []
    words: list[Tensor] = []
    scales: list[Tensor] = []
    gathers: list[Tensor] = []
    for old in matrix.sections:
        some = gather[old.row : old.row + section_rows(matrix, old)]
        kept = _kept(matrix, old, some != NO_FEATURE)
        if kept is None:
            continue
        pieces = -(-len(kept.rows) // PIECE_ROWS)
        section = replace(
            old,
            rows_per_scale=kept.step,
            row=sum(map(len, gathers)),
            piece=sum(section.pieces for section in sections),
            pieces=pieces,
            word=sum(part.shape[1] for part in words),
            scale=sum(part.shape[1] for part in scales),
        )
        sections.append(section)
        words.append(_rows_of_codes(matrix, old, kept.rows, pieces))
        scales.append(_rows_of_scales(matrix, old, kept.scales, section))
        gathers.append(functional.pad(some, (0, 1), value=NO_FEATURE)[kept.rows])
    return replace(
        matrix,
        features=len(features),
        sections=tuple(sections),
        words=torch.cat(words, dim=1),
        scales=torch.cat(scales, dim=1),
        gather=torch.cat(gathers).to(torch.int32).to(torch.int16),
    )


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Neighbouring rows whose scales need not be in two places: at most a piece, of one section.

    Args:
        features: int64, those that they take, in stored order.
        bits: of all codes of a column.
    """

    features: Tensor
    bits: int


def row_groups(matrix: PackedMatrix) -> list[RowGroup]:
    """All rows, in stored order."""
    gather, groups = unsigned(matrix.gather), []
    for section in matrix.sections:
        runs = _runs(matrix, section)
        ends = (runs[1:] != runs[:-1]).nonzero().flatten().add(1).tolist()
        for first, last in pairwise([0, *ends, len(runs)]):
            for start in range(first, last, PIECE_ROWS):
                end = min(start + PIECE_ROWS, last)
                features = gather[section.row + start : section.row + end]
                groups.append(RowGroup(features[features != NO_FEATURE], section.bits * (end - start)))
    return groups


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left of a section.

    Args:
        rows: int64, numbers inside the section, and the one behind its last where a row only fills up.
        step: rows of a scale.
        scales: int64, numbers inside the section, one for each step.
    """

    rows: Tensor
    step: int
    scales: Tensor


def _kept(matrix: PackedMatrix, section: LayoutSection, keep: Tensor) -> _Kept | None:
    if not bool(keep.any()):
        return None
    rows = keep.nonzero().flatten()
    runs = _runs(matrix, section)[rows]
    sizes = filled_sizes(runs, int(runs[-1]) + 1)
    step, order = rows_per_scale([size for size in sizes.tolist() if size]), sorted_rows(runs, sizes)
    scales = rows[torch.searchsorted(runs, torch.arange(len(sizes), device=runs.device))] // section.rows_per_scale
    filled = torch.where(order == NO_FEATURE, len(keep), rows[order.clamp(max=len(rows) - 1)])
    return _Kept(filled, step, scales.repeat_interleave(sizes)[::step])


def _runs(matrix: PackedMatrix, section: LayoutSection) -> Tensor:
    """int64: for each row of a section which run of rows with the same scales it belongs to."""
    first, second = (part.view(len(part), -1) for part in section_scales(matrix, section))
    changes = torch.zeros(len(first), dtype=torch.int64, device=first.device)
    changes[1:] = (first[1:] != first[:-1]).any(1) | (second[1:] != second[:-1]).any(1)
    return changes.cumsum(0).repeat_interleave(section.rows_per_scale)[: section_rows(matrix, section)]


def _rows_of_codes(matrix: PackedMatrix, section: LayoutSection, rows: Tensor, pieces: int) -> Tensor:
    """int32 `[N / 16, words]`; the row behind the last of the section holds the code that stands for 0."""
    count, parts = section_rows(matrix, section), []
    rows = functional.pad(rows, (0, pieces * PIECE_ROWS - len(rows)), value=count)
    for _, part in column_parts(matrix, _COLUMNS_AT_ONCE):
        codes = functional.pad(section_codes(part, section)[:count], (0, 0, 0, 1), value=_zero(section))
        parts.append(pack_tiles(codes[rows], section.bits))
    return torch.cat(parts)


def _rows_of_scales(matrix: PackedMatrix, old: LayoutSection, numbers: Tensor, new: LayoutSection) -> Tensor:
    """int32 `[N / 16, scale words]`."""
    missing = new.pieces * PIECE_ROWS // new.rows_per_scale - len(numbers)
    numbers = torch.cat((numbers, numbers[-1:].expand(missing)))
    return _pack_scales([part[numbers] for part in section_scales(matrix, old)], new)


def _columns_of_codes(matrix: PackedMatrix, section: LayoutSection, columns: Tensor) -> Tensor:
    """int32 `[n / 16, words]`."""
    parts = []
    for first in range(0, section.pieces, _PIECES_AT_ONCE):
        pieces = min(_PIECES_AT_ONCE, section.pieces - first)
        some = replace(section, pieces=pieces, word=section.word + first * section.piece_words)
        codes = functional.pad(section_codes(matrix, some), (0, 1), value=_zero(section))
        parts.append(pack_tiles(codes[:, columns], section.bits))
    return torch.cat(parts, dim=1)


def _columns_of_scales(matrix: PackedMatrix, section: LayoutSection, columns: Tensor) -> Tensor:
    """int32 `[n / 16, scale words]`."""
    scales = section_scales(matrix, section)
    taken = [functional.pad(part, (0, 1))[:, columns] if part.ndim == 2 else part for part in scales]
    return _pack_scales(taken, section)


def _pack_scales(scales: Sequence[Tensor], section: LayoutSection) -> Tensor:
    first, second = scales
    return (indexed_scales if section.scales == "indexed" else plain_scales)(first, second, section)


def _zero(section: LayoutSection) -> int:
    """The code of 0, or of any number where the scale is 0 or nothing is read."""
    return 1 << (section.bits - 1)


def _whole_tiles(columns: Tensor) -> Tensor | None:
    """The numbers of the tiles that these columns are, if they are."""
    if len(columns) % TILE_COLUMNS:
        return None
    tiles = columns[::TILE_COLUMNS] // TILE_COLUMNS
    inside = torch.arange(TILE_COLUMNS, device=columns.device)
    return tiles if torch.equal(columns, (TILE_COLUMNS * tiles.unsqueeze(1) + inside).flatten()) else None
