"""What one card has of a quantized matrix is the matrix's own: decoded, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from exlchat.engine.formats import awq_writer, exl2, gptq_writer
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.packing import pack_awq, pack_exl2, pack_gptq
from exlchat.engine.parallel.cut import deal
from exlchat.engine.parallel.matrices import row_groups, take_columns, take_rows
from exlchat.ext import layout
from exlchat.ext.layout import PackedMatrix, decode
from tests.engine.bit_streams import random_awq, random_gptq

pytestmark = pytest.mark.usefixtures("one_thread")
# The last group is short wherever 64 or 128 rows fill it.
FEATURES, OUTPUTS = 800, 96
MIXES = {
    **{f"{bits} bits": (Section(bits, 1.0, 128),) for bits in exl2.BIT_WIDTHS},
    "8, 5, 4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "6, 5, 3, 2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
}


def _weight() -> Tensor:
    return torch.randn(FEATURES, OUTPUTS, generator=torch.Generator().manual_seed(1))


def _exl2(name: str) -> PackedMatrix:
    return pack_exl2(quantize_matrix(_weight(), MIXES[name]), torch.randn(OUTPUTS).half())


def _gptq(size: int, *, act_order: bool) -> PackedMatrix:
    recipe = GptqRecipe(size, act_order, symmetric=False)
    return pack_gptq(gptq_writer.quantize_matrix(_weight(), recipe), settings=GptqSettings(group_size=size))


def _filled() -> PackedMatrix:
    """Groups of any number of rows, which the layout has filled up, and zero points of 0, which it holds mirrored."""
    tensors = random_gptq(4, 320, OUTPUTS, 5)
    tensors["g_idx"] = torch.randint(5, (320,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    return pack_gptq(tensors, settings=GptqSettings(exact_zeros=True, symmetric=False))


MATRICES: dict[str, Callable[[], PackedMatrix]] = {
    **{f"exl2 of {name}": lambda name=name: _exl2(name) for name in MIXES},
    "gptq": lambda: _gptq(128, act_order=False),
    "gptq in act-order": lambda: _gptq(128, act_order=True),
    "gptq in act-order, groups of 32": lambda: _gptq(32, act_order=True),
    "gptq of one group": lambda: _gptq(-1, act_order=False),
    "gptq, groups filled up": _filled,
    "awq": lambda: pack_awq(awq_writer.quantize_matrix(_weight(), 64), settings=AwqSettings(64)),
    "awq of random codes": lambda: pack_awq(random_awq(608, OUTPUTS, 5), settings=AwqSettings()),
}


@cache
def made(name: str) -> tuple[PackedMatrix, Tensor]:
    torch.manual_seed(0)
    matrix = MATRICES[name]()
    return matrix, decode(matrix)


def shuffled(count: int, end: int) -> Tensor:
    return torch.randperm(end, generator=torch.Generator().manual_seed(count))[:count]


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(
    "columns",
    [torch.arange(32, 80), torch.cat((torch.arange(80, 96), torch.arange(16))), torch.arange(24, 72), shuffled(41, 96)],
    ids=["tiles", "tiles in another order", "between tiles", "any"],
)
def test_columns(name: str, columns: Tensor) -> None:
    matrix, weights = made(name)
    part = take_columns(matrix, columns)
    found = decode(part)
    assert torch.equal(found[:, : len(columns)], weights[:, columns])
    assert part.outputs == found.shape[1] == -(-len(columns) // 16) * 16
    assert found[:, len(columns) :].count_nonzero() == 0
    if matrix.bias is not None:
        assert part.bias is not None
        assert torch.equal(part.bias[: len(columns)], matrix.bias[columns])
        assert part.bias[len(columns) :].count_nonzero() == 0


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("cards", [2, 3, 4])
def test_rows_that_do_not_ask_about_groups(name: str, cards: int) -> None:
    """As heads divide the rows of the attention's output: features one after the other, of any groups."""
    matrix, weights = made(name)
    total = torch.zeros(2, OUTPUTS, dtype=torch.float64)
    x = torch.randn(2, matrix.features, generator=torch.Generator().manual_seed(2)).double()
    for features in torch.arange(matrix.features).tensor_split(cards):
        part = take_rows(matrix, features)
        assert torch.equal(decode(part), weights[features])
        check_layout(part)
        total += layout.to_stored(x[:, features], part) @ stored_weights(part)
    assert torch.allclose(total, x @ weights.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("cards", [2, 3, 4])
def test_whole_groups(name: str, cards: int) -> None:
    """As the rows of down are dealt: no scale twice, no row filled up that was not, and the stored order kept."""
    matrix, weights = made(name)
    groups = row_groups(matrix)
    owners = deal([float(group.bits) for group in groups], [1 / cards] * cards)
    parts = []
    for card in range(cards):
        features = torch.cat([group.features for group, owner in zip(groups, owners, strict=True) if owner == card])
        part = take_rows(matrix, features)
        assert torch.equal(decode(part), weights[features])
        real = layout.unsigned(part.gather) != layout.NO_FEATURE
        assert torch.equal(layout.unsigned(part.gather)[real], torch.arange(len(features)))
        check_layout(part)
        parts.append((part, features))
    assert torch.equal(torch.cat([features for _, features in parts]).sort().values, torch.arange(matrix.features))
    assert sum(part.stored for part, _ in parts) == matrix.stored
    sizes = [sum(g.bits for g, owner in zip(groups, owners, strict=True) if owner == card) for card in range(cards)]
    assert max(sizes) - min(sizes) <= max(group.bits for group in groups)


@pytest.mark.parametrize("name", MATRICES)
def test_all_rows_and_all_columns_are_the_matrix(name: str) -> None:
    matrix, weights = made(name)
    both = take_columns(take_rows(matrix, shuffled(matrix.features, matrix.features)), torch.arange(OUTPUTS))
    assert torch.equal(decode(both), weights[shuffled(matrix.features, matrix.features)])
    assert (both.stored, both.outputs) == (matrix.stored, OUTPUTS)


def check_layout(part: PackedMatrix) -> None:
    """That sections stand one behind the other, in whole blocks, and that what fills up a last piece adds nothing."""
    row = piece = word = scale = 0
    for section in part.sections:
        assert (section.row, section.piece, section.word, section.scale) == (row, piece, word, scale)
        assert section.row % layout.BLOCK_ROWS == 0
        rows = layout.section_rows(part, section)
        assert bool((layout.section_codes(part, section)[rows:] == 1 << (section.bits - 1)).all())
        row += rows
        piece += section.pieces
        word += section.pieces * section.piece_words
        scale += section.pieces * section.scale_words
    assert (row, word, scale) == (part.stored, part.words.shape[1], part.scales.shape[1])
    assert part.stored % layout.BLOCK_ROWS == 0


def stored_weights(part: PackedMatrix) -> Tensor:
    """float64 `[stored, N]`, rows that take no feature being what their codes stand for: nothing is to read them."""
    gather = torch.arange(part.stored).to(torch.int32).to(torch.int16)
    return decode(PackedMatrix(part.stored, part.outputs, part.sections, part.words, part.scales, gather)).double()


@pytest.mark.parametrize(
    ("costs", "shares", "wanted"),
    [
        ([1] * 5, (1 / 3,) * 3, [2, 2, 1]),
        ([1] * 8, (1 / 3,) * 3, [3, 3, 2]),
        ([1] * 8, (0.75, 0.25), [6, 2]),
        ([1] * 4, (0.97, 0.01, 0.01, 0.01), [1, 1, 1, 1]),
        ([1] * 3, (0.5, 0.5, 0.0), [1, 1, 1]),
    ],
)
def test_what_is_dealt_comes_to_the_shares(costs: list[float], shares: tuple[float, ...], wanted: list[int]) -> None:
    owners = deal(costs, shares)
    assert [owners.count(card) for card in range(len(shares))] == wanted


def test_groups_of_every_section_are_dealt_in_turn() -> None:
    assert deal([16.0] * 3 + [9.0] * 6, (0.5, 0.5)) == [0, 1, 0, 1, 1, 0, 1, 0, 1]
