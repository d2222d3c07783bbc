"""EXL2 reading and writing against vectors made by the format's original implementation."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from exlchat.engine.formats import exl2, exl2_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.llm.info import ModelError
from tests.shared_data import DATA, needs_shared

DEVICE_CASES = ("b2", "b3", "b4", "b5", "b6", "b8", "mix32", "mix653", "mix842")


@functools.cache
def device_vectors() -> dict[str, torch.Tensor]:
    return load_file(DATA / "dequantize_vectors.safetensors")


@functools.cache
def format_vectors() -> dict[str, torch.Tensor]:
    with np.load(DATA / "format_vectors.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


@needs_shared
def test_every_device_case_is_known() -> None:
    names = {name.split(".")[1] for name in device_vectors() if name.startswith("exl2.")}
    assert names == set(DEVICE_CASES)


@needs_shared
@pytest.mark.parametrize("case", DEVICE_CASES)
def test_dequantize_equals_the_original_on_a_gpu(case: str) -> None:
    prefix = f"exl2.{case}."
    tensors = {name.removeprefix(prefix): t for name, t in device_vectors().items() if name.startswith(prefix)}
    assert torch.equal(bits_of(exl2.dequantize(tensors)), bits_of(tensors["dequantized"]))


@needs_shared
@pytest.mark.parametrize("case", range(13))
def test_dequantize_equals_the_original_on_mixed_layouts(case: int) -> None:
    tensors = {name: format_vectors()[f"exl2_{case}_{name}"] for name in exl2.TENSORS}
    assert torch.equal(bits_of(exl2.dequantize(tensors)), bits_of(format_vectors()[f"exl2_{case}_W"]))


@needs_shared
@pytest.mark.parametrize("bits", exl2.BIT_WIDTHS)
def test_packing_and_the_scale_search_equal_the_original(bits: int) -> None:
    vectors = format_vectors()
    codes = vectors[f"pack{bits}_in"].to(torch.int32)
    words = vectors[f"pack{bits}_out"].view(torch.int32)
    assert torch.equal(exl2.pack(codes, bits), words)
    assert torch.equal(exl2.unpack(words, bits), codes.to(torch.int16))

    found, index, maximum = exl2_writer.quantize_group(vectors[f"fp{bits}_x"], bits)
    assert torch.equal(index + 1, vectors[f"fp{bits}_qs"].to(torch.int32))
    assert maximum == vectors[f"fp{bits}_smax"]
    assert torch.equal(found, vectors[f"fp{bits}_q"].to(torch.int32))


def test_worked_example_of_the_format_description() -> None:
    """formats/exl2.md, section 10: one 4-bit group, reversed rows."""
    low, high = 0x76543210, 0xFEDCBA98 - (1 << 32)
    column = torch.tensor([low, high, low, high], dtype=torch.int64)
    eights = 0x88888888 - (1 << 32)
    q_weight = torch.full((4, 32), eights, dtype=torch.int64)
    q_weight[:, 0] = column
    q_scale = torch.full((1, 4), -1, dtype=torch.int64)
    q_scale[0, 0] = 0xFFFFFFF7 - (1 << 32)
    weights = exl2.dequantize(
        {
            "q_weight": q_weight.to(torch.int32),
            "q_invperm": torch.arange(31, -1, -1, dtype=torch.int32),
            "q_scale": q_scale.to(torch.int32),
            "q_scale_max": torch.tensor([0.5], dtype=torch.float16),
            "q_groups": torch.tensor([4, 0], dtype=torch.int16),
        }
    )
    assert weights[31, 0] == -1.0
    assert weights[30, 0] == -0.875
    assert weights[0, 0] == 0.875
    assert not weights[:, 1:].any()


@settings(max_examples=25)
@given(
    st.sampled_from(
        [
            (Section(8, 1.0, 128),),
            (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
            (Section(6, 0.3, 32), Section(3, 0.3, 64), Section(2, 0.4, 64)),
        ]
    ),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 2**31),
)
def test_what_is_written_is_read_back_within_half_a_step(
    sections: tuple[Section, ...], k: int, n: int, seed: int
) -> None:
    weight = torch.randn(32 * k, 32 * n, generator=torch.Generator().manual_seed(seed)) * 0.02
    tensors = exl2_writer.quantize_matrix(weight, sections)
    error = (exl2.dequantize(tensors).float() - weight)[tensors["q_invperm"].argsort()].abs()
    scales = exl2.decode_scales(tensors["q_scale"], tensors["q_scale_max"]).float()
    for index, group in enumerate(exl2.read_groups(tensors)):
        rows = weight[tensors["q_invperm"].argsort()][group.row : group.row + group.rows]
        # Values past the last code are cut off; the others lie within half a step (and one float16 rounding).
        inside = rows.abs() <= scales[index] * ((1 << (group.bits - 1)) - 1)
        limit = (scales[index] * 0.5 + rows.abs() * 2**-10).expand_as(rows)
        assert (error[group.row : group.row + group.rows] <= limit)[inside].all()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("q_groups", torch.tensor([7, 0], dtype=torch.int16), "7 bits"),
        ("q_groups", torch.tensor([8, 3], dtype=torch.int16), "cannot span word rows"),
        ("q_groups", torch.tensor([4, 0], dtype=torch.int16), "the groups hold"),
        ("q_groups", torch.tensor([8, 0, 8, 0], dtype=torch.int16), "number of groups"),
        ("q_invperm", torch.zeros(64, dtype=torch.int32), "not a permutation"),
        ("q_invperm", torch.arange(1, 65, dtype=torch.int32), "not a permutation"),
        ("q_scale", torch.zeros(1, 3, dtype=torch.int32), "columns"),
        ("q_weight", torch.zeros(16, 32, dtype=torch.int64), "int64"),
        ("q_scale_max", torch.full((1,), torch.nan, dtype=torch.float16), "q_scale_max holds what is no number"),
        ("q_scale_max", None, "is missing"),
    ],
)
def test_layers_that_do_not_fit_together_are_named(name: str, value: torch.Tensor | None, words: str) -> None:
    tensors = exl2_writer.quantize_matrix(torch.randn(64, 32), exl2_writer.EIGHT_BITS)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    with pytest.raises(ModelError, match=words) as error:
        exl2.dequantize(tensors)
    assert "\n" not in str(error.value)
