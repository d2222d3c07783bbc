"""Products on the CPU as the kernel makes them from a plan's table: what each warp reads, and where its sums go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.layout import NO_FEATURE, PIECE_ROWS, PackedMatrix, plain_scales, to_stored
from exlchat.ext.plan import WARPS, GemvPlan, make_plan
from exlchat.ext.tiles import pack_tiles

FOUR = (Section(4, 1.0, 128),)
MIXED = (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128))
ALL = tuple(Section(bits, share, 32) for bits, share in ((8, 0.1), (6, 0.1), (5, 0.2), (4, 0.2), (3, 0.2), (2, 0.2)))
WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
NAN = float("nan")


def exl2(features: int, outputs: int, recipe: tuple[Section, ...]) -> PackedMatrix:
    return pack_exl2(quantize_matrix(torch.randn(features, outputs), recipe))


def gptq(features: int, outputs: int, every: int) -> PackedMatrix:
    """Three stored rows take no feature."""
    pieces = -(-features // PIECE_ROWS)
    section = layout.LayoutSection(4, "plain", every, 0, 0, pieces, 0, 0)
    count = pieces * PIECE_ROWS // every
    scale, zero = torch.rand(count, outputs).half(), torch.randint(16, (count, outputs), dtype=torch.uint8)
    words = pack_tiles(torch.randint(16, (pieces * PIECE_ROWS, outputs)), 4)
    gather = torch.full((features,), NO_FEATURE)
    gather[torch.randperm(features)[: features - 3]] = torch.randperm(features - 3)
    packed = gather.to(torch.int32).to(torch.int16)
    return PackedMatrix(features - 3, outputs, (section,), words, plain_scales(scale, zero, section), packed)


def segment_weights(matrix: PackedMatrix, codes: int, scales: int, packed: int) -> Tensor:
    """float64 `[rows, 16]`: what the pieces of a segment stand for, read as the kernel reads them."""
    pieces, kind = packed & 2047, packed >> 25
    bits, plain = (4, True) if kind >= 24 else (WIDTHS[kind // 4], False)
    section = layout.LayoutSection(bits, "plain" if plain else "indexed", GROUPS[kind % 4], 0, 0, pieces, 0, 0)
    word_count, scale_count = pieces * section.piece_words, pieces * section.scale_words
    one = PackedMatrix(
        pieces * PIECE_ROWS,
        16,
        (section,),
        matrix.words.flatten()[codes * 4 :][:word_count].view(1, -1),
        matrix.scales.flatten()[scales * 4 :][:scale_count].view(1, -1),
        torch.arange(pieces * PIECE_ROWS).to(torch.int16),
    )
    return layout.decode(one).double()


def block_sums(row: list[int], plan: GemvPlan, matrices: list[PackedMatrix], x: Tensor) -> Tensor:
    """float64 `[columns, 16]`. Shared memory holds NaN where nobody writes."""
    shared = torch.full((plan.x_rows,), NAN, dtype=torch.float64)
    sums = torch.zeros(plan.columns, WARPS, 16, dtype=torch.float64)
    for warp in range(WARPS):
        x_row, x_rows, place, _ = row[8 + 4 * warp : 12 + 4 * warp]
        assert place + x_rows <= plan.x_rows
        mine = shared[place : place + x_rows]
        assert mine.isnan().all(), "two warps in one place"
        mine.zero_()
        mine[: len(x) - x_row] = x[x_row : x_row + x_rows]
        begin = 8 + 4 * WARPS + 4 * warp * plan.segments
        for at in range(begin, begin + 4 * plan.segments, 4):
            codes, scales, packed, where = row[at : at + 4]
            if packed == 0:
                break
            weights = segment_weights(matrices[packed >> 23 & 3], codes, scales, packed)
            sums[where >> 16, warp] += mine[(where & 0xFFFF) * 32 :][: len(weights)] @ weights
        else:
            raise AssertionError("a list without an end")
    return sums.sum(1)


def check(matrices: list[PackedMatrix], *, blocks: int, paired: bool = False) -> None:
    first = matrices[0]
    matrices = [replace(matrix, gather=first.gather) for matrix in matrices]
    plan = make_plan(matrices, blocks=blocks, paired=paired)
    x = torch.randn(1, first.features, dtype=torch.float64)
    found = [torch.full((matrix.outputs // 16, 16), NAN, dtype=torch.float64) for matrix in matrices]
    for row in plan.table.tolist():
        sums, number = block_sums(row, plan, matrices, to_stored(x, first)[0]), 0
        for index, y in enumerate(found):
            start, count = row[2 * index : 2 * index + 2]
            y[start : start + count] = sums[number : number + count]
            number += count
    for matrix, y in zip(matrices, found, strict=True):
        assert torch.allclose(y.flatten(), (x @ layout.decode(matrix).double())[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("blocks", [1, 5, 200])
@pytest.mark.parametrize("features", [32, 96, 160, 1376])
@pytest.mark.sweep(5)
def test_three_matrices(features: int, blocks: int) -> None:
    matrices = [exl2(features, 160, ALL), exl2(features, 32, FOUR), exl2(features, 64, MIXED)]
    check(matrices, blocks=blocks)


@pytest.mark.parametrize("blocks", [1, 7])
def test_a_pair_of_different_mixes(blocks: int) -> None:
    check([exl2(1376, 320, ALL), exl2(1376, 320, FOUR)], blocks=blocks, paired=True)


@pytest.mark.parametrize("every", [32, 64, 128])
def test_one_column_tile_of_gptq(every: int) -> None:
    check([gptq(1376, 16, every)], blocks=3)


@pytest.mark.parametrize("features", [28672, 65504])
def test_the_widest_rows(features: int) -> None:
    check([exl2(features, 32, MIXED)], blocks=1)
