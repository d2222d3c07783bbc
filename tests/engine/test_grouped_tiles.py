"""The kernels' layout stands for exactly the weights of a GPTQ or AWQ file."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.formats import awq, gptq
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_writer import GptqRecipe, quantize_matrix
from exlchat.engine.formats.packing import pack_awq, pack_gptq
from exlchat.ext import layout
from tests.engine.bit_streams import random_awq, random_gptq
from tests.engine.gptq_vectors import DEVICE_CASES, device_case, format_case, weights_of
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
    assert same_bits(layout.decode(matrix), weights_of(tensors, GptqSettings(group_size=group_size)))


def test_groups_of_any_size_are_filled_up() -> None:
    groups = torch.randint(5, (320,), generator=torch.Generator().manual_seed(1))
    groups[groups == 3] = 4
    tensors = quantize_matrix(torch.randn(320, 32), GptqRecipe(64))
    tensors["g_idx"] = groups.to(torch.int32)
    matrix = pack_gptq(tensors, settings=GptqSettings())
    assert matrix.stored % layout.BLOCK_ROWS == 0
    assert matrix.stored > 320
    wanted = weights_of(tensors, GptqSettings())
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


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("version", [False, True])
@pytest.mark.parametrize(("features", "outputs", "groups"), [(128, 32, 4), (352, 64, 3), (96, 2080, 1), (576, 32, 9)])
def test_pieces_hold_random_codes_and_zero_points(
    bits: int, version: bool, features: int, outputs: int, groups: int
) -> None:
    """Every zero point there is, 0 in version 2 among them, whose weights the pieces hold mirrored."""
    tensors = random_gptq(bits, features, outputs, groups)
    settings = GptqSettings(version, symmetric=False, bits=bits)
    wanted = gptq.dequantize(tensors, checkpoint_format="gptq_v2" if version else "gptq", bits=bits)
    matrix = pack_gptq(tensors, settings=settings)
    # Equal as numbers: a mirrored zero is a negative one.
    assert torch.equal(layout.decode(matrix), wanted)
    zeros = gptq.decode_zeros(tensors["qzeros"], settings, bits)
    assert bool((zeros == 0).any()) is version


@pytest.mark.parametrize(("features", "outputs", "groups"), [(128, 32, 4), (352, 64, 3), (100, 32, 1), (96, 2080, 3)])
def test_pieces_hold_awq(features: int, outputs: int, groups: int) -> None:
    tensors = random_awq(features, outputs, groups)
    assert torch.equal(layout.decode(pack_awq(tensors, settings=AwqSettings())), awq.dequantize(tensors))


def test_groups_smaller_than_a_block_are_filled_up() -> None:
    tensors = random_awq(96, 32, 6)
    matrix = pack_awq(tensors, settings=AwqSettings(16))
    assert matrix.stored == 6 * layout.BLOCK_ROWS
    assert torch.equal(layout.decode(matrix), awq.dequantize(tensors))


@pytest.mark.parametrize(("bits", "outputs"), [(8, 32), (4, 40)])
def test_what_the_pieces_cannot_hold(bits: int, outputs: int) -> None:
    with pytest.raises(ValueError, match=f"{outputs} outputs of {bits} bits; the kernels take 16s, of up to 4 bits"):
        pack_gptq(random_gptq(bits, 64, outputs, 1), settings=GptqSettings())


def test_four_bits_cost_what_they_should() -> None:
    matrix = pack_gptq(quantize_matrix(torch.randn(4096, 64), GptqRecipe(128)), settings=GptqSettings())
    assert 4.0 < matrix.bytes * 8 / (4096 * 64) < 4.2
