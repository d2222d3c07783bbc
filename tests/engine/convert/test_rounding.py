"""Rounding of one matrix: as the textbook hands errors on, better than rounding alone, and read back bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from exlchat.engine.convert.rounding import losses, lost, round_matrix, statistics
from exlchat.engine.convert.scales import steps_below
from exlchat.engine.convert.steps import TorchSteps
from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.llm.info import ModelError

STEPS = TorchSteps()


def inputs(features: int, seed: int = 0, tokens: int = 600) -> Tensor:
    """What a matrix reads: some features far larger than others, and alike."""
    draws = torch.Generator().manual_seed(seed)
    mixed = torch.randn(tokens, features // 2, generator=draws) @ torch.randn(features // 2, features, generator=draws)
    x = mixed / features**0.5 + 0.3 * torch.randn(tokens, features, generator=draws)
    return x * torch.exp(torch.randn(features, generator=draws))


def matrix(features: int, outputs: int, seed: int = 1) -> Tensor:
    return torch.randn(features, outputs, generator=torch.Generator().manual_seed(seed)) / features**0.5


def mean_square(x: Tensor, error: Tensor) -> float:
    return float((x @ error).square().sum() / len(x))


def test_errors_are_handed_on_as_the_textbook_does_it() -> None:
    """GPTQ (Frantar et al. 2022, arXiv 2210.17323), written out row by row in float64 from the inverse itself."""
    x, weight = inputs(32), matrix(32, 5)
    stats = statistics(x.T @ x / len(x), "m")
    damped = stats.moments.double()
    damped.diagonal().add_(0.02 * float(damped.diagonal().mean()))
    scale = torch.full((5,), 0.05)
    rest, inverse = weight[stats.order].double().clone(), torch.linalg.inv(damped)
    wanted = torch.empty(32, 5, dtype=torch.float64)
    for row in range(32):
        code = (rest[row] / scale).round().clamp(-8, 7)
        error = (rest[row] - code * scale) / inverse[row, row]
        # As the loss sees it.
        wanted[row] = error * inverse[row, row].sqrt()
        rest -= inverse[:, row : row + 1] * error
        inverse = inverse - inverse[:, row : row + 1] @ inverse[row : row + 1] / inverse[row, row]
        inverse[row, row] = 1.0
    rows, half = weight[stats.order].unsqueeze(1), torch.tensor([8.0])
    _, found = STEPS.rounded(rows, stats.upper, scale[None], half)
    # Products are rounded as the reader does.
    assert torch.allclose(found[:, 0].double(), wanted, atol=2e-3)
    sums = STEPS.losses(rows, stats.upper, scale[None, None], half)
    assert torch.allclose(sums[0, 0].double(), wanted.square().sum(0), rtol=1e-3)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_less_is_lost_than_by_rounding_alone(bits: int) -> None:
    x, weight = inputs(128), matrix(128, 64)
    stats = statistics(x.T @ x / len(x), "m")
    rounded = round_matrix(STEPS, weight[stats.order], stats, [(bits, 64)] * 2, torch.ones(64))
    plain = exl2.dequantize(quantize_matrix(weight, [Section(bits, 1.0, 64)], permutation=stats.order)).float()
    assert lost(rounded, weight[stats.order])[0] < 0.6 * mean_square(x, plain - weight)


@given(
    layout=st.sampled_from([[(8, 32), (4, 32), (2, 32)], [(6, 64), (5, 32)], [(3, 128), (3, 32)], [(5, 32), (3, 64)]]),
    outputs=st.sampled_from([32, 96]),
    seed=st.integers(0, 1000),
)
def test_what_is_written_reads_back_bit_for_bit(layout: list[tuple[int, int]], outputs: int, seed: int) -> None:
    features = sum(rows for _, rows in layout)
    x, weight = inputs(features, seed), matrix(features, outputs, seed)
    stats = statistics(x.T @ x / len(x), "m")
    rounded = round_matrix(STEPS, weight[stats.order], stats, layout, torch.ones(outputs))
    tensors = rounded.tensors()
    assert torch.equal(exl2.dequantize(tensors)[stats.order].float(), rounded.values())
    assert [(group.bits, group.rows) for group in exl2.read_groups(tensors)] == layout
    error = exl2.dequantize(tensors).float() - weight
    assert lost(rounded, weight[stats.order])[0] == pytest.approx(mean_square(x, error), rel=1e-3)


def test_tables_say_what_a_width_loses() -> None:
    x, weight = inputs(128), matrix(128, 64)
    stats = statistics(x.T @ x / len(x), "m")
    table = losses(STEPS, weight[stats.order], stats, torch.ones(64), [32, 32], widths=[4, 3, 2], size=64)
    assert table.shape == (3, 2, 2)
    for place, bits in enumerate((4, 3, 2)):
        rounded = round_matrix(STEPS, weight[stats.order], stats, [(bits, 64)] * 2, torch.ones(64))
        # Coordinate descent is not in the tables, nor is the damping in what is lost.
        assert 0.6 < lost(rounded, weight[stats.order])[0] / float(table[place].sum()) < 1.05


def test_inputs_that_never_occur_and_inputs_that_are_alike_are_no_trouble() -> None:
    x = inputs(64)
    x[:, 7] = 0
    x[:, 9] = x[:, 8]
    stats = statistics(x.T @ x / len(x), "m")
    rounded = round_matrix(STEPS, matrix(64, 32)[stats.order], stats, [(4, 64)], torch.ones(32))
    assert bool(rounded.values().isfinite().all())


def test_inputs_that_are_no_numbers_are_named() -> None:
    moments = torch.eye(32)
    moments[3, 4] = float("nan")
    with pytest.raises(ModelError, match=r"the layer: 1 of its 32 inputs are no numbers"):
        statistics(moments, "the layer")


def test_scales_are_rounded_as_the_reader_rounds_them() -> None:
    largest = torch.tensor([0.013, 3.1e-4, 0.9]).half()
    index = torch.arange(16).view(1, 16).expand(3, 16).to(torch.int32)
    stored = exl2.decode_scales(exl2.pack_scale_indices(index), largest)
    assert torch.equal(stored.float(), steps_below(largest))
