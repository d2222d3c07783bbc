"""Every piece of a product is somebody's, once, and nobody has much more than another."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.plan import WARPS, Plan, make_plan

FOUR = (Section(4, 1.0, 128),)
MIXED = (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128))


def matrix(features: int, outputs: int, recipe: tuple[Section, ...]) -> PackedMatrix:
    return pack_exl2(quantize_matrix(torch.randn(features, outputs), recipe))


def walk(plan: Plan, matrices: list[PackedMatrix]) -> list[list[tuple[int, int, int]]]:
    """(matrix, column tile, piece) of every warp, walked as the kernel walks."""
    found = []
    for row in plan.table.tolist():
        first, count = row[0:6:2], row[1:6:2]
        for warp in range(WARPS):
            at, column, piece, _, pieces = row[8 + 12 * warp : 13 + 12 * warp]
            mine = []
            for _ in range(pieces):
                mine.append((at, column, piece))
                piece += 1
                if piece == matrices[at].pieces:
                    piece, column = 0, column + 1
                    while at < 2 and column == first[at] + count[at]:
                        at += 1
                        column = first[at]
            found.append(mine)
    return found


@pytest.mark.parametrize("blocks", [1, 5, 132])
@pytest.mark.parametrize("paired", [False, True])
def test_every_piece_once(blocks: int, paired: bool) -> None:
    matrices = [matrix(512, 160, MIXED), matrix(512, 160, FOUR)]
    if not paired:
        matrices.append(matrix(512, 32, MIXED))
    plan = make_plan(matrices, blocks=blocks, paired=paired)
    taken = sorted(piece for warp in walk(plan, matrices) for piece in warp)
    wanted = [(m, c, p) for m, it in enumerate(matrices) for c in range(it.outputs // 16) for p in range(it.pieces)]
    assert taken == wanted
    assert len(plan.table) == blocks
    per_block = plan.table[:, 1:6:2].sum(1)
    assert int(per_block.max()) == plan.columns
    if paired:
        assert torch.equal(plan.table[:, 0:2], plan.table[:, 2:4])


def test_shares_are_equal_in_bytes() -> None:
    matrices = [matrix(2048, 32 * 132, MIXED)]
    plan = make_plan(matrices, blocks=132, paired=False)
    costs = torch.cat([torch.full((s.pieces,), s.piece_words + s.scale_words) for s in matrices[0].sections])
    loads = [sum(int(costs[piece]) for _, _, piece in warp) for warp in walk(plan, matrices)]
    assert max(loads) - min(loads) <= 2 * int(costs.max())
    assert plan.columns == 2


def test_a_run_begins_where_its_first_piece_stands() -> None:
    matrices = [matrix(512, 160, MIXED), matrix(512, 160, FOUR)]
    plan = make_plan(matrices, blocks=7, paired=True)
    for row in plan.table.tolist():
        for warp in range(WARPS):
            at, column, piece, number, count, ahead, word, scale, size, scale_size = row[8 + 12 * warp : 18 + 12 * warp]
            if count == 0:
                continue
            section = matrices[at].sections[number]
            assert section.piece <= piece < piece + ahead <= section.piece + section.pieces
            assert (size, scale_size) == (section.piece_words / 4, section.scale_words / 4)
            words, scales = (tensor[0].numel() for tensor in (matrices[at].words, matrices[at].scales))
            assert word * 4 == column * words + section.word + (piece - section.piece) * section.piece_words
            assert scale * 4 == column * scales + section.scale + (piece - section.piece) * section.scale_words
