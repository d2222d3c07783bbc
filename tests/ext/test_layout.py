"""The kernels' layout stands for exactly the weights of the file."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.formats import exl2, packing
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.ext import layout
from tests.engine.test_exl2 import device_vectors, format_vectors
from tests.shared_data import needs_shared

RECIPES = [
    *((Section(bits, 1.0, 128),) for bits in exl2.BIT_WIDTHS),
    (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("features", "outputs"), [(128, 32), (800, 96), (2048, 64), (96, 2080)])
@pytest.mark.sweep(11)
def test_tiles_hold_the_weights(recipe: tuple[Section, ...], features: int, outputs: int) -> None:
    weight = torch.randn(features, outputs, generator=torch.Generator().manual_seed(features))
    tensors = quantize_matrix(weight, recipe)
    matrix = packing.pack_exl2(tensors)
    assert torch.equal(layout.decode(matrix), exl2.dequantize(tensors))


@needs_shared
@pytest.mark.parametrize("case", range(13))
def test_tiles_hold_the_format_vectors(case: int) -> None:
    tensors = {name: format_vectors()[f"exl2_{case}_{name}"] for name in exl2.TENSORS}
    sizes = {group.rows for group in exl2.read_groups(tensors)}
    if any(size % 32 for size in sizes):
        pytest.skip("a group of 16 rows: the kernels leave such layers to the dense path")
    assert torch.equal(layout.decode(packing.pack_exl2(tensors)), format_vectors()[f"exl2_{case}_W"])


@needs_shared
def test_tiles_hold_the_device_vectors() -> None:
    vectors = device_vectors()
    for case in {name.split(".")[1] for name in vectors if name.startswith("exl2.")}:
        tensors = {name: vectors[f"exl2.{case}.{name}"] for name in exl2.TENSORS}
        assert torch.equal(layout.decode(packing.pack_exl2(tensors)), vectors[f"exl2.{case}.dequantized"])


def test_four_bits_cost_what_they_should() -> None:
    tensors = quantize_matrix(torch.randn(4096, 64), (Section(4, 1.0, 128),))
    matrix = packing.pack_exl2(tensors)
    codes, scales = 4096 * 64 // 2, 4096 // 128 * 64 // 16 * 16
    assert matrix.bytes == codes + scales


def test_activations_go_to_the_stored_order() -> None:
    tensors = quantize_matrix(torch.randn(96, 32), (Section(4, 1.0, 32),))
    matrix = packing.pack_exl2(tensors)
    x = torch.randn(3, 96)
    assert torch.equal(layout.to_stored(x, matrix), x[:, tensors["q_invperm"].long().argsort()])
