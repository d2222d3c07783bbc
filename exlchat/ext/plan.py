"""Which block and which warp of a product takes which pieces of its matrices.

There is a block for every multiprocessor, though some may have nothing to do: where one stays empty, two blocks of the
kernel behind start there early, and that takes twice as long. Blocks take whole column tiles, as equal in bytes as
tiles allow. Inside a block the pieces of its columns, one column behind the other, are cut into runs of equal bytes,
one a warp: whatever the mix of bit widths, every warp of a block reads the same amount and one contiguous range of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from exlchat.ext.layout import TILE_COLUMNS, PackedMatrix

# Of a block; `EXL_WARPS` of the header.
WARPS = 8
MAX_MATRICES = 3
_BLOCK_INTS = 8
_WARP_INTS = 12
_UNIT_WORDS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What `ExlGemv.plan` points to.

    Args:
        table: int32 `[blocks, 8 + 12 * WARPS]` on the CPU: first column tile and number of column tiles of each of
            three matrices, two zeros; then of each warp matrix, column tile, piece and section to begin with, number of
            pieces, pieces up to the end of the section, where they begin in the codes and the scales of the matrix and
            how long each is there (units of 16 bytes), two zeros.
        columns: the most column tiles of a block, all matrices together.
    """

    table: Tensor
    columns: int


def make_plan(matrices: Sequence[PackedMatrix], *, blocks: int, paired: bool) -> Plan:
    """Cuts a product up.

    Args:
        matrices: one to three that are multiplied with the same x.
        blocks: how many, one a multiprocessor.
        paired: a block takes the same columns of both matrices, as a gated product needs.
    """
    tiles = [matrix.outputs // TILE_COLUMNS for matrix in matrices]
    costs = [_piece_costs(matrix) for matrix in matrices]
    bounds = _block_bounds(tiles, [int(cost.sum()) for cost in costs], blocks, paired=paired)
    table = torch.zeros(len(bounds), _BLOCK_INTS + _WARP_INTS * WARPS, dtype=torch.int32)
    # Blocks with as many columns of each matrix are cut alike.
    runs: dict[tuple[int, ...], Tensor] = {}
    for row, parts in zip(table, bounds, strict=True):
        counts = tuple(count for _, count in parts)
        if not any(counts):
            continue
        if counts not in runs:
            runs[counts] = _warp_runs(counts, costs)
        mine = runs[counts].clone()
        mine[:, 1] += torch.tensor([first for first, _ in parts], dtype=torch.int32)[mine[:, 0].long()]
        row[: 2 * len(parts)] = torch.tensor(parts).flatten()
        row[_BLOCK_INTS:] = _with_places(mine, matrices).flatten()
    return Plan(table, max(sum(count for _, count in parts) for parts in bounds))


def _piece_costs(matrix: PackedMatrix) -> Tensor:
    """int64 `[pieces]`: words of every piece of a column."""
    words = torch.tensor([section.piece_words + section.scale_words for section in matrix.sections])
    return words.repeat_interleave(torch.tensor([section.pieces for section in matrix.sections]))


def _block_bounds(tiles: list[int], sizes: list[int], blocks: int, *, paired: bool) -> list[list[tuple[int, int]]]:
    """For each block the first column tile and number of column tiles of each matrix."""
    if paired:
        cuts = [block * tiles[0] // blocks for block in range(blocks + 1)]
        return [[(low, high - low)] * len(tiles) for low, high in pairwise(cuts)]
    each = torch.tensor(sizes).repeat_interleave(torch.tensor(tiles))
    middles = each.cumsum(0).double() - each / 2
    # A block ends at the column nearest to its share.
    inner = torch.searchsorted(middles, torch.arange(1, blocks) * (each.sum() / blocks), right=True)
    cuts = [0, *inner.tolist(), sum(tiles)]
    starts = [sum(tiles[:matrix]) for matrix in range(len(tiles))]
    return [
        [
            (max(low - start, 0), max(min(high - start, width) - max(low - start, 0), 0))
            for start, width in zip(starts, tiles, strict=True)
        ]
        for low, high in pairwise(cuts)
    ]


def _warp_runs(counts: tuple[int, ...], costs: list[Tensor]) -> Tensor:
    """int32 `[WARPS, 4]`: matrix, column tile counted from the block's first, piece, pieces."""
    sizes = torch.cat([cost.repeat(count) for count, cost in zip(counts, costs, strict=True)])
    middles = sizes.cumsum(0).double() - sizes / 2
    inner = torch.searchsorted(middles, torch.arange(1, WARPS) * (sizes.sum() / WARPS), right=True)
    runs = torch.zeros(WARPS, 4, dtype=torch.int32)
    for run, (low, high) in zip(runs, pairwise([0, *inner.tolist(), len(sizes)]), strict=True):
        number, matrix = low, 0
        while matrix < len(counts) - 1 and number >= counts[matrix] * len(costs[matrix]):
            number -= counts[matrix] * len(costs[matrix])
            matrix += 1
        column, piece = divmod(number, len(costs[matrix]))
        run[:] = torch.tensor([matrix, column, piece, high - low])
    return runs


def _with_places(runs: Tensor, matrices: Sequence[PackedMatrix]) -> Tensor:
    """int32 `[WARPS, 12]`: runs with where they begin in memory."""
    table = torch.zeros(WARPS, _WARP_INTS, dtype=torch.int32)
    for row, (matrix, column, piece, pieces) in zip(table, runs.tolist(), strict=True):
        if pieces == 0:
            continue
        packed = matrices[matrix]
        number = next(i for i, part in enumerate(packed.sections) if piece < part.piece + part.pieces)
        section = packed.sections[number]
        before = piece - section.piece
        word = column * packed.words.shape[1] + section.word + before * section.piece_words
        scale = column * packed.scales.shape[1] + section.scale + before * section.scale_words
        units = [value // _UNIT_WORDS for value in (word, scale, section.piece_words, section.scale_words)]
        row[:10] = torch.tensor([matrix, column, piece, number, pieces, min(pieces, section.pieces - before), *units])
    return table
