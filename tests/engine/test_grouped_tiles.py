"""The kernels' layout stands for exactly the weights of a GPTQ file."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.formats import gptq
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_tiles import pack_gptq
from exlchat.engine.formats.gptq_writer import GptqRecipe, quantize_matrix
from exlchat.ext import layout
from tests.engine.gptq_vectors import DEVICE_CASES, device_case, format_case
from tests.engine.test_gptq import same_bits
from tests.shared_data import needs_shared


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group_size", [32, 64, 128, 256, -1])
@pytest.mark.parametrize(("features", "outputs"), [(128, 32), (800, 96), (2048, 64), (96, 2080)])
def test_pieces_hold_the_weights(features: int, outputs: int, group_size: int, act_order: bool) -> None:
    weight = torch.randn(features, outputs, generator=torch.Generator().manual_seed(features))
    tensors = quantize_matrix(weight, GptqRecipe(group_size, act_order, symmetric=False))
    matrix = pack_gptq(tensors, settings=GptqSettings(group_size=group_size))
    assert matrix.stored == features
    assert same_bits(layout.decode(matrix), gptq.dequantize(tensors, GptqSettings(group_size=group_size)))


def test_groups_of_any_size_are_filled_up() -> None:
    groups = torch.randint(5, (320,), generator=torch.Generator().manual_seed(1))
    groups[groups == 3] = 4
    tensors = quantize_matrix(torch.randn(320, 32), GptqRecipe(64))
    tensors["g_idx"] = groups.to(torch.int32)
    matrix = pack_gptq(tensors, settings=GptqSettings())
    assert matrix.stored % layout.BLOCK_ROWS == 0
    assert matrix.stored > 320
    wanted = gptq.dequantize(tensors, GptqSettings())
    assert same_bits(layout.decode(matrix), wanted)
    x = torch.randn(3, 320)
    stored = layout.to_stored(x, matrix)
    assert stored.count_nonzero() == x.numel()


@needs_shared
@pytest.mark.parametrize("case", DEVICE_CASES)
def test_pieces_hold_the_device_vectors(case: str) -> None:
    tensors, wanted = device_case(case)
    assert same_bits(layout.decode(pack_gptq(tensors, settings=GptqSettings())), wanted)


@needs_shared
@pytest.mark.parametrize("case", range(5))
def test_pieces_hold_the_format_vectors(case: int) -> None:
    tensors, settings, wanted = format_case(case)
    assert same_bits(layout.decode(pack_gptq(tensors, settings=settings)), wanted)


def test_a_zero_point_of_0_is_left_to_the_dense_path() -> None:
    tensors = quantize_matrix(torch.randn(128, 32), GptqRecipe(128))
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], 0x77777770)
    with pytest.raises(ValueError, match="zero points from 0"):
        pack_gptq(tensors, settings=GptqSettings(exact_zeros=True))


def test_four_bits_cost_what_they_should() -> None:
    matrix = pack_gptq(quantize_matrix(torch.randn(4096, 64), GptqRecipe(128)), settings=GptqSettings())
    assert 4.0 < matrix.bytes * 8 / (4096 * 64) < 4.2
