"""Which block and which warp of a product takes which pieces of its matrices.

There is a block for every multiprocessor, or several where a block would have too many columns, though some may have
nothing to do: where one stays empty, two blocks of the kernel behind start there early, and that takes twice as long.
Blocks take whole column tiles, as equal in bytes as tiles allow. Inside a block every warp takes a range of the rows,
about the same one of each of its columns: it needs only a part of x, and meets few changes of bit width. Where a
range ends is shifted from column to column, so that after every column the warps have been given nearly the same.

The kernels get a list of segments for every warp and need to know nothing else: pieces of one width that stand one
behind the other in one column.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from exlchat.ext.layout import BLOCK_ROWS, PIECE_ROWS, TILE_COLUMNS, LayoutSection, PackedMatrix

# Of a block; `EXL_WARPS` of the header.
WARPS = 8
HEADER_INTS = 8
SEGMENT_INTS = WARP_INTS = 4
_UNIT_WORDS = 4
# What a step costs beside its bytes, in bytes: narrow codes are not multiplied faster than wide ones.
_STEP_COST = 2048
# The same of a run of pieces, at the end of which sums go to shared memory.
_RUN_COST = 2048
_MOST_COLUMNS = 32
# Numbers of the kernels' kinds: width number * 4 + group number; behind them those with plain scales.
_WIDTHS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)


@dataclass(frozen=True, slots=True)
class GemvPlan:
    """What `ExlGemv.plan` points to.

    Args:
        table: int32 `[blocks, ints]` on the CPU. Of a block: first column tile and number of column tiles of each of
            three matrices, two zeros; of each warp the first row of x that it needs, how many, their place among those
            of all warps, and a zero; of each warp `segments` segments, unused ones zero.
            A segment: where its codes and its scales begin in the matrix, in 16 bytes; `_packed`; first row, counted
            from the warp's, in 32 rows, + (number of the column in the block, << 16).
        segments: room for segments of a warp; the last is never used.
        columns: the most column tiles of a block, all matrices together.
        x_rows: the most rows of x of a block, all warps together.
        x_spans: the most rows from the first to the last that a block needs; and that the first or the last half of the
            warps of two neighbouring blocks do, 0 where the last block has no neighbour.
    """

    table: Tensor
    segments: int
    columns: int
    x_rows: int
    x_spans: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column tile of a block.

    Args:
        matrix: its number.
        column: of the tile, counted from the block's first of that matrix.
        number: of its sums among all of the block.
        warps: that share it.
        row: of x, where the matrix begins.
    """

    matrix: int
    column: int
    number: int
    warps: range
    row: int = 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Pieces of one section in a column tile.

    Args:
        place: of the column.
        before: pieces of the section before.
    """

    place: _Column
    section: LayoutSection
    before: int
    pieces: int

    @property
    def row(self) -> int:
        return self.place.row + self.section.row + self.before * PIECE_ROWS

    @property
    def end(self) -> int:
        return self.row + self.pieces * PIECE_ROWS


@dataclass(frozen=True, slots=True)
class _Share:
    """What blocks with as many columns of each matrix have in common: what each warp does."""

    runs: list[list[_Run]]

    @property
    def x_ranges(self) -> list[tuple[int, int]]:
        """First row and number of rows of x of each warp; whole pieces, as it adds them up."""
        found = []
        for runs in self.runs:
            low = min((run.row for run in runs), default=0)
            rows = max((run.end for run in runs), default=0) - low
            found.append((low, -(-rows // PIECE_ROWS) * PIECE_ROWS))
        return found


def make_plan(matrices: Sequence[PackedMatrix], *, blocks: int, paired: bool, ways: int = WARPS) -> GemvPlan:
    """Cuts a product up, for any number of rows of x: what a row comes to depends on nothing else.

    Args:
        matrices: one to three that are multiplied with the same x.
        blocks: one a multiprocessor; the plan has a multiple.
        paired: a block takes the same columns of both matrices, as a gated product needs.
        ways: the most warps that share a column. Few have longer runs, but need more of x each.
    """
    tiles = [matrix.outputs // TILE_COLUMNS for matrix in matrices]
    sizes = [matrix.bytes // (matrix.outputs // TILE_COLUMNS) for matrix in matrices]
    bounds = _block_bounds(tiles, sizes, blocks, paired=paired)
    times = 1
    while max(sum(count for _, count in parts) for parts in bounds) > _MOST_COLUMNS:
        times += 1
        bounds = _block_bounds(tiles, sizes, blocks * times, paired=paired)
    ways = min(ways, _ways([_steps(matrix) for matrix in matrices]))
    shared = {counts: _shared_columns(counts, ways) for counts in _all_counts(bounds)}
    return _plan(bounds, shared, matrices, max(map(len, shared.values())))


def make_stacked_plan(matrix: PackedMatrix, count: int, *, blocks: int) -> tuple[GemvPlan, int]:
    """Cuts up a product with so many matrices alike, whose rows stand one behind the other.

    A block has sums of its own for each of them and each column tile; those of matrix n begin at number n times what is
    returned second, the most column tiles of a block.

    Args:
        count: 1, 2, 4 or 8; each has as many warps of a block for itself.
    """
    tiles, times = [matrix.outputs // TILE_COLUMNS], 1
    bounds = _block_bounds(tiles, [1], blocks, paired=False)
    while (most := max(number for ((_, number),) in bounds)) * count > _MOST_COLUMNS:
        times += 1
        bounds = _block_bounds(tiles, [1], blocks * times, paired=False)
    each = WARPS // count
    stacked: dict[tuple[int, ...], list[_Column]] = {
        (number,): [
            _Column(0, column, part * most + column, range(part * each, (part + 1) * each), part * matrix.stored)
            for column in range(number)
            for part in range(count)
        ]
        for (number,) in _all_counts(bounds)
    }
    return _plan(bounds, stacked, [matrix], count * most), most


def _all_counts(bounds: list[list[tuple[int, int]]]) -> set[tuple[int, ...]]:
    """How many column tiles of each matrix blocks have."""
    return {tuple(count for _, count in parts) for parts in bounds}


def _shared_columns(counts: tuple[int, ...], ways: int) -> list[_Column]:
    """Groups of `ways` warps share a column, each group has as many columns; what is left is shared by all.

    Warps that share rows in the groups are neighbours where all share, so that they need no other rows of x.
    """
    groups = WARPS // ways
    together = sum(counts) // groups * groups
    places = [(matrix, column) for matrix, count in enumerate(counts) for column in range(count)]
    return [
        _Column(matrix, column, index, range(index % groups, WARPS, groups) if index < together else range(WARPS))
        for index, (matrix, column) in enumerate(places)
    ]


def _plan(
    bounds: list[list[tuple[int, int]]],
    columns: dict[tuple[int, ...], list[_Column]],
    matrices: Sequence[PackedMatrix],
    most: int,
) -> GemvPlan:
    """Of blocks with these bounds; `columns` of those that have so many of each matrix, `most` numbers of sums."""
    steps = [_steps(matrix) for matrix in matrices]
    shares = {counts: _share(of_block, matrices, steps) for counts, of_block in columns.items()}
    segments = max(len(runs) for share in shares.values() for runs in share.runs) + 1
    table = torch.zeros(len(bounds), HEADER_INTS + WARPS * (WARP_INTS + segments * SEGMENT_INTS), dtype=torch.int32)
    for counts, share in shares.items():
        mine = [block for block, parts in enumerate(bounds) if tuple(count for _, count in parts) == counts]
        firsts = torch.tensor([[first for first, _ in bounds[block]] for block in mine], dtype=torch.int32)
        table[mine] = _rows(share, counts, firsts, matrices, segments)
    return GemvPlan(
        table,
        segments,
        most,
        max(sum(rows for _, rows in share.x_ranges) for share in shares.values()),
        _spans(table[:, HEADER_INTS : HEADER_INTS + WARPS * WARP_INTS].view(-1, WARPS, WARP_INTS)),
    )


def _spans(warps: Tensor) -> tuple[int, int]:
    """`GemvPlan.x_spans`, of the part of the table that is about warps, `[blocks, WARPS, WARP_INTS]`."""
    row, rows = warps[:, :, 0], warps[:, :, 1]
    first, end = torch.where(rows > 0, row, torch.iinfo(row.dtype).max // 2), row + rows
    whole = int((end.amax(1) - first.amin(1)).max())
    if len(warps) % 2:
        return whole, 0
    halves = (-1, 2, 2, WARPS // 2)
    return whole, int((end.view(halves).amax((1, 3)) - first.view(halves).amin((1, 3))).max())


def _ways(steps: list[list[_Step]]) -> int:
    """How many warps share a column, so that each has two steps of it or more, whose matrix ever it is."""
    ways = WARPS
    while ways > 1 and min(map(len, steps)) < 2 * ways:
        ways //= 2
    return ways


def kind_of(section: LayoutSection) -> int:
    """The number by which the kernels know a width, its groups and its kind of scales."""
    group = _GROUPS.index(section.rows_per_scale)
    return 4 * (len(_WIDTHS) if section.scales == "plain" else _WIDTHS.index(section.bits)) + group


def pieces_a_step(section: LayoutSection) -> int:
    """Codes of more than four bits are multiplied a piece at a time, others two: at most two kilobytes."""
    return 1 if section.bits > 4 else 2


def _packed(run: _Run) -> int:
    """The third number of a segment, from its lowest bits: 11 pieces, 8 codes and 4 scales of a piece in 16 bytes,
    2 matrix, 5 kind.
    """
    section = run.section
    packed = at = 0
    for bits, value in (
        (11, run.pieces),
        (8, section.piece_words // _UNIT_WORDS),
        (4, section.scale_words // _UNIT_WORDS),
        (2, run.place.matrix),
        (5, kind_of(section)),
    ):
        packed |= value << at
        at += bits
    return packed


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


def _share(columns: Sequence[_Column], matrices: Sequence[PackedMatrix], steps: list[list[_Step]]) -> _Share:
    """Cuts the columns of a block up among their warps; `steps` are those of a column of each matrix."""
    runs: list[list[_Run]] = [[] for _ in range(WARPS)]
    given = [0.0] * WARPS
    for place in columns:
        costs = [0, *accumulate(step.cost for step in steps[place.matrix])]
        pieces = [*(step.piece for step in steps[place.matrix]), matrices[place.matrix].pieces]
        cuts = pairwise(_cuts(costs, [given[warp] for warp in place.warps]))
        for warp, (low, high) in zip(place.warps, cuts, strict=True):
            if low == high:
                continue
            more = _runs(matrices[place.matrix], place, range(pieces[low], pieces[high]))
            given[warp] += costs[high] - costs[low] + _RUN_COST * len(more)
            runs[warp] += more
    # Every change of kind costs the kernel a few hundred clocks: pieces of one kind in one go, whatever their column.
    return _Share([sorted(mine, key=lambda run: kind_of(run.section)) for mine in runs])


def _cuts(costs: list[int], given: list[float]) -> list[int]:
    """Where steps are cut up among warps so that those who were given less until now get more.

    Args:
        costs: of the steps before each, one more than there are steps.
        given: what each warp has.
    """
    level = (sum(given) + costs[-1]) / len(given)
    places = accumulate(level - before for before in given[:-1])
    cuts = [0]
    for place in places:
        nearest = bisect_left(costs, place, lo=1, hi=len(costs) - 1)
        if place - costs[nearest - 1] < costs[nearest] - place:
            nearest -= 1
        cuts.append(max(nearest, cuts[-1]))
    return [*cuts, len(costs) - 1]


@dataclass(frozen=True, slots=True)
class _Step:
    """What a warp multiplies at a time: one or two pieces, and what they cost."""

    piece: int
    cost: int


def _steps(matrix: PackedMatrix) -> list[_Step]:
    found = []
    for section in matrix.sections:
        each = pieces_a_step(section)
        for before in range(0, section.pieces, each):
            pieces = min(each, section.pieces - before)
            size = (section.piece_words + section.scale_words) * 4 * pieces
            found.append(_Step(section.piece + before, size + _STEP_COST))
    return found


def _runs(packed: PackedMatrix, place: _Column, pieces: range) -> list[_Run]:
    """Pieces of a column of a matrix."""
    found = []
    for section in packed.sections:
        first, last = max(pieces.start, section.piece), min(pieces.stop, section.piece + section.pieces)
        if first < last:
            found.append(_Run(place, section, first - section.piece, last - first))
    return found


def _rows(
    share: _Share, counts: tuple[int, ...], firsts: Tensor, matrices: Sequence[PackedMatrix], segments: int
) -> Tensor:
    """int32 `[blocks, ints]`: the table of blocks that have a share in common.

    Args:
        counts: how many columns of each matrix such a block has.
        firsts: int32 `[blocks, matrices]`, the first of them.
        segments: room for segments of a warp.
    """
    columns = [(m.words.shape[1] // _UNIT_WORDS, m.scales.shape[1] // _UNIT_WORDS) for m in matrices]
    warps: list[int] = []
    places: list[tuple[int, int, int, int]] = []
    matrix_of: list[int] = []
    x_at = 0
    for runs, (x_row, x_rows) in zip(share.runs, share.x_ranges, strict=True):
        warps += (x_row, x_rows, x_at, 0)
        x_at += x_rows
        for run in runs:
            section, place, (codes, scales) = run.section, run.place, columns[run.place.matrix]
            codes = (section.word + run.before * section.piece_words) // _UNIT_WORDS + place.column * codes
            scales = (section.scale + run.before * section.scale_words) // _UNIT_WORDS + place.column * scales
            row = (run.row - x_row) // BLOCK_ROWS + (place.number << 16)
            places.append((codes, scales, _packed(run), row))
        matrix_of += [run.place.matrix for run in runs] + [0] * (segments - len(runs))
        places += [(0, 0, 0, 0)] * (segments - len(runs))
    lists = torch.tensor(places, dtype=torch.int32).repeat(len(firsts), 1, 1)
    # Segments that are not used stay zero.
    shifts = torch.tensor(columns, dtype=torch.int32)[matrix_of] * (lists[0, :, 2:3] != 0)
    lists[:, :, :2] += firsts[:, matrix_of, None] * shifts
    header = torch.zeros(len(firsts), HEADER_INTS, dtype=torch.int32)
    header[:, 0 : 2 * len(counts) : 2] = firsts
    header[:, 1 : 2 * len(counts) : 2] = torch.tensor(counts)
    return torch.cat((header, torch.tensor(warps, dtype=torch.int32).repeat(len(firsts), 1), lists.flatten(1)), dim=1)
