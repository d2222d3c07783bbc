"""Every piece of a product is somebody's, once, and nobody has much more than another."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.layout import PIECE_ROWS, PackedMatrix
from exlchat.ext.plan import WARPS, GemvPlan, make_plan

FOUR = (Section(4, 1.0, 128),)
MIXED = (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128))
NARROW = (Section(6, 0.3, 64), Section(3, 0.3, 32), Section(2, 0.4, 64))
WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
KINDS = {(bits, every): 4 * i + n for i, bits in enumerate(WIDTHS) for n, every in enumerate(GROUPS)}


def matrix(features: int, outputs: int, recipe: tuple[Section, ...]) -> PackedMatrix:
    return pack_exl2(quantize_matrix(torch.randn(features, outputs), recipe))


@dataclass(frozen=True)
class Warp:
    """What a warp does, read from the table as the kernel reads it."""

    block: int
    pieces: list[tuple[int, int, int]]  # matrix, column tile, piece
    columns: list[tuple[int, int, int]]  # number in the block, matrix, column tile; of each segment
    kinds: list[int]
    x_row: int
    x_rows: int


def walk(plan: GemvPlan, matrices: list[PackedMatrix]) -> list[Warp]:
    found = []
    for block, row in enumerate(plan.table.tolist()):
        for warp in range(WARPS):
            x_row, x_rows, _, _ = row[8 + 4 * warp : 12 + 4 * warp]
            assert x_rows % PIECE_ROWS == 0
            begin = 8 + 4 * WARPS + 4 * warp * plan.segments
            lists = [row[at : at + 4] for at in range(begin, begin + 4 * plan.segments, 4)]
            assert lists[-1][2] == 0
            pieces, columns, kinds = [], [], []
            for codes, scales, packed, place in lists:
                if packed == 0:
                    break
                count, step, scale, at = packed & 2047, packed >> 11 & 255, packed >> 19 & 15, packed >> 23 & 3
                kind = packed >> 25
                column, word = divmod(codes * 4, matrices[at].words.shape[1])
                section = next(s for s in matrices[at].sections if s.word <= word < s.word + s.pieces * s.piece_words)
                before = (word - section.word) // section.piece_words
                stored = matrices[at].scales.shape[1]
                assert scales * 4 == column * stored + section.scale + before * section.scale_words
                assert (section.piece_words, section.scale_words) == (step * 4, scale * 4)
                assert kind == KINDS[section.bits, section.rows_per_scale]
                first_row = (place & 0xFFFF) * 32
                assert x_row + first_row == section.row + before * PIECE_ROWS
                assert first_row + count * PIECE_ROWS <= x_rows
                pieces += [(at, column, section.piece + before + i) for i in range(count)]
                columns.append((place >> 16, at, column))
                kinds.append(kind)
            found.append(Warp(block, pieces, columns, kinds, x_row, x_rows))
    return found


@pytest.mark.parametrize("blocks", [1, 5, 132])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("ways", [2, WARPS])
def test_every_piece_once(blocks: int, paired: bool, ways: int) -> None:
    matrices = [matrix(512, 160, MIXED), matrix(512, 160, FOUR)]
    if not paired:
        matrices.append(matrix(512, 32, NARROW))
    plan = make_plan(matrices, blocks=blocks, paired=paired, ways=ways)
    taken = sorted(piece for warp in walk(plan, matrices) for piece in warp.pieces)
    wanted = [(m, c, p) for m, it in enumerate(matrices) for c in range(it.outputs // 16) for p in range(it.pieces)]
    assert taken == wanted
    assert len(plan.table) == blocks
    per_block = plan.table[:, 1:6:2].sum(1)
    assert int(per_block.max()) == plan.columns
    if paired:
        assert torch.equal(plan.table[:, 0:2], plan.table[:, 2:4])


@pytest.mark.parametrize("paired", [False, True])
def test_a_segment_knows_its_column_in_the_block(paired: bool) -> None:
    matrices = [matrix(800, 96, MIXED), matrix(800, 96, NARROW)]
    plan = make_plan(matrices, blocks=4, paired=paired)
    for warp in walk(plan, matrices):
        row = plan.table[warp.block].tolist()
        columns = [(m, row[2 * m] + i) for m in range(3) for i in range(row[2 * m + 1])]
        assert [columns[number] for number, _, _ in warp.columns] == [(m, column) for _, m, column in warp.columns]


def test_a_warp_takes_all_pieces_of_a_kind_in_one_go() -> None:
    matrices = [matrix(1024, 96, MIXED), matrix(1024, 96, NARROW)]
    warps = walk(make_plan(matrices, blocks=1, paired=True), matrices)
    assert any(len(set(warp.kinds)) > 1 for warp in warps)
    assert all(warp.kinds == sorted(warp.kinds) for warp in warps)


def test_no_block_reads_more_of_x_than_the_plan_says() -> None:
    matrices = [matrix(800, 96, MIXED), matrix(800, 96, NARROW)]
    plan = make_plan(matrices, blocks=4, paired=True)
    warps = walk(plan, matrices)
    assert plan.x_rows == max(sum(w.x_rows for w in warps if w.block == block) for block in range(4))


def test_shares_are_equal_in_bytes() -> None:
    matrices = [matrix(512, 32 * 132, MIXED)]
    plan = make_plan(matrices, blocks=132, paired=False)
    costs = torch.cat([torch.full((s.pieces,), s.piece_words + s.scale_words) for s in matrices[0].sections])
    loads = [sum(int(costs[piece]) for _, _, piece in warp.pieces) for warp in walk(plan, matrices)]
    assert max(loads) - min(loads) <= 2 * int(costs.max())
    assert plan.columns == 2


def test_a_warp_needs_little_more_than_its_part_of_x() -> None:
    matrices = [matrix(4096, 64, MIXED), matrix(4096, 64, FOUR)]
    plan = make_plan(matrices, blocks=2, paired=True)
    assert 4096 <= plan.x_rows <= 4096 + 3 * WARPS * PIECE_ROWS


def test_of_few_warps_a_column_each_has_few_columns() -> None:
    matrices = [matrix(4096, 256, FOUR), matrix(4096, 256, FOUR)]
    columns = {
        ways: [len(warp.columns) for warp in walk(make_plan(matrices, blocks=2, paired=True, ways=ways), matrices)]
        for ways in (1, 2, 4, WARPS)
    }
    assert columns == {ways: [2 * ways] * 2 * WARPS for ways in columns}


def test_a_block_takes_no_more_columns_than_its_sums_have_room() -> None:
    matrices = [matrix(128, 16 * 300, FOUR)]
    plan = make_plan(matrices, blocks=8, paired=False)
    assert plan.columns <= 32
    assert len(plan.table) == 16
    assert sorted(c for warp in walk(plan, matrices) for _, c, _ in warp.pieces) == list(range(300))


def test_plain_scales_have_kinds_of_their_own() -> None:
    sections = tuple(layout.LayoutSection(4, "plain", every, 0, 0, 1, 0, 0) for every in (32, 64, 128))
    kinds = []
    for section in sections:
        words, scales = torch.zeros(1, section.piece_words), torch.zeros(1, section.scale_words)
        packed = PackedMatrix(128, 16, (section,), words.int(), scales.int(), torch.arange(128).to(torch.int16))
        plan = make_plan([packed], blocks=1, paired=False)
        lists = plan.table[0, 8 + 4 * WARPS :][: 4 * WARPS * plan.segments].view(-1, 4)
        kinds += [int(packed) >> 25 for packed in lists[:, 2] if packed]
    assert kinds == [24, 25, 26]


def span(warps: list[Warp]) -> int:
    with_rows = [warp for warp in warps if warp.x_rows]
    first = min((warp.x_row for warp in with_rows), default=0)
    return max((warp.x_row + warp.x_rows for warp in with_rows), default=first) - first


@pytest.mark.parametrize("blocks", [2, 6, 132])
@pytest.mark.parametrize("features", [96, 512, 2048])
def test_spans_are_what_a_block_and_half_of_two_neighbours_read(blocks: int, features: int) -> None:
    matrices = [matrix(features, 352, MIXED if features > 96 else FOUR)]
    plan = make_plan(matrices, blocks=blocks, paired=False)
    warps = walk(plan, matrices)
    by_block = [[warp for warp in warps if warp.block == block] for block in range(blocks)]
    half = WARPS // 2
    halves = [
        span([*by_block[pair][rank : rank + half], *by_block[pair + 1][rank : rank + half]])
        for pair in range(0, blocks, 2)
        for rank in (0, half)
    ]
    assert plan.x_spans == (max(map(span, by_block)), max(halves))


def test_blocks_of_an_odd_number_are_not_paired() -> None:
    assert make_plan([matrix(512, 160, FOUR)], blocks=5, paired=False).x_spans == (512, 0)
