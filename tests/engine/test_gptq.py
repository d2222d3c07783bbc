"""GPTQ against vectors of other readers, and whole models against `transformers` on the dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from exlchat.engine.formats import gptq
from exlchat.engine.formats.exl2 import pack
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_writer import GptqRecipe, quantize_matrix, write_model
from exlchat.engine.formats.quantization_config import read_quantization
from tests.engine.bit_streams import gptq_weights, random_gptq
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.gptq_vectors import DEVICE_CASES, NAMES, device_case, device_vectors, format_case, weights_of
from tests.random_models import edit_json, save_random_llama
from tests.shared_data import needs_shared


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(found.view(torch.int16), wanted.view(torch.int16))


@needs_shared
def test_every_device_case_is_known() -> None:
    names = {name.split(".")[1] for name in device_vectors() if name.startswith("gptq.")}
    assert names == set(DEVICE_CASES)


@needs_shared
@pytest.mark.parametrize("case", DEVICE_CASES)
def test_dequantize_equals_the_original_on_a_gpu(case: str) -> None:
    tensors, wanted = device_case(case)
    assert same_bits(weights_of(tensors, GptqSettings()), wanted)


@needs_shared
@pytest.mark.parametrize("case", range(5))
def test_dequantize_equals_the_format_vectors(case: int) -> None:
    tensors, stored, wanted = format_case(case)
    assert same_bits(weights_of(tensors, stored), wanted)


def test_worked_example_of_the_format_description() -> None:
    """formats/gptq.md, section 9: eight rows of codes 0 to 7, zero point 8, scale 0.5."""
    tensors = {
        "qweight": torch.full((1, 8), 0x76543210, dtype=torch.int32),
        "qzeros": torch.full((1, 1), 0x77777777, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }
    weights = gptq.dequantize(tensors)
    assert weights[:, 0].tolist() == [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("features", "groups"), [(128, 4), (128, 1), (96, 1), (352, 3), (160, 5)])
def test_every_width_equals_the_unpacking_of_the_description(
    bits: int, features: int, groups: int, version: str
) -> None:
    tensors = random_gptq(bits, features, 64, groups, seed=bits)
    size = {(128, 4): 32, (352, 3): 128, (160, 5): 32}.get((features, groups), features)
    wanted = gptq_weights(tensors, bits, np.arange(features) // size, exact_zeros=version == "gptq_v2")
    assert same_bits(gptq.dequantize(tensors, checkpoint_format=version, bits=bits), wanted)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_width_with_rows_of_any_group(bits: int) -> None:
    tensors = random_gptq(bits, 192, 32, 5)
    order = torch.randint(5, (192,), generator=torch.Generator().manual_seed(bits))
    tensors["g_idx"] = order.to(torch.int32)
    wanted = gptq_weights(tensors, bits, order.numpy(), exact_zeros=False)
    assert same_bits(gptq.dequantize(tensors, bits=bits), wanted)
    # Where config.json does not say the width, the tensors do.
    assert same_bits(weights_of(tensors, GptqSettings(symmetric=False)), wanted)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_what_is_called_version_1_is_version_1(bits: int) -> None:
    """`dequantize` takes a label at its word; a model's layers are read by what a symmetric file shows."""
    middle = 1 << (bits - 1)
    ones = torch.ones(64, 64, dtype=torch.int64)
    tensors = {
        "qweight": pack(ones * middle, bits),
        "qzeros": pack(ones[:, :1] * middle, bits).T.contiguous(),
        "scales": torch.ones(1, 64, dtype=torch.float16),
    }
    assert set(gptq.dequantize(tensors, bits=bits).flatten().tolist()) == {-1.0}
    assert set(gptq.dequantize(tensors, checkpoint_format="gptq_v2", bits=bits).flatten().tolist()) == {0.0}
    assert set(weights_of(tensors, GptqSettings(symmetric=True)).flatten().tolist()) == {0.0}


@pytest.mark.parametrize(("label", "bits"), [("marlin", 4), ("gptq", 5), ("gptq", 0)])
def test_formats_and_widths_that_are_not_known(label: str, bits: int) -> None:
    with pytest.raises(ModelError, match=f"'{label}' of {bits} bits is not known"):
        gptq.dequantize(random_gptq(4, 64, 64, 1), checkpoint_format=label, bits=bits)


@pytest.mark.parametrize(
    ("word", "label", "symmetric", "zero"),
    [
        (0x77777777, False, None, 8),
        (0x77777777, True, True, 8),
        (0x88888888 - 2**32, False, True, 8),
        (0x88888888 - 2**32, True, None, 8),
        (0x88888888 - 2**32, False, False, 9),
        (0x77777777, True, False, 7),
        (-1, False, None, 16),
        (-1, True, None, 15),
        (0, False, None, 1),
        (0, True, None, 0),
    ],
)
def test_zero_points_of_both_versions_whatever_the_label(
    word: int, label: bool, symmetric: bool | None, zero: int
) -> None:
    found = gptq.decode_zeros(torch.full((2, 3), word, dtype=torch.int32), GptqSettings(label, symmetric), 4)
    assert found.shape == (2, 24)
    assert set(found.flatten().tolist()) == {zero}


@settings(max_examples=25)
@given(
    st.builds(
        GptqRecipe,
        st.sampled_from([32, 64, 128, -1]),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from([2, 3, 4, 8]),
    ),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_what_is_written_is_read_back_within_half_a_step(recipe: GptqRecipe, k: int, n: int, seed: int) -> None:
    weight = torch.randn(32 * k, 32 * n, generator=torch.Generator().manual_seed(seed)) * 0.02
    tensors = quantize_matrix(weight, recipe)
    stored = GptqSettings(recipe.exact_zeros, recipe.symmetric, recipe.group_size)
    steps = tensors["scales"].float()[tensors["g_idx"].long()]
    error = (weights_of(tensors, stored).float() - weight).abs()
    # The range of a group ends at its extremes, which the zero point's own rounding may cut by half a step more.
    # Of a symmetric range the code above the middle is missing, which cuts 2 bits by half a step as well.
    assert (error <= steps * 1.01 + weight.abs() * 2**-10).all()
    assert (error <= steps * 0.51 + weight.abs() * 2**-10).float().mean() > 0.9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("scales"), "scales is missing"),
        (lambda t: t.update(qweight=t["qweight"].long()), "qweight is int64"),
        (lambda t: t.update(scales=t["scales"].double()), "scales is float64"),
        (lambda t: t.update(scales=t["scales"][0]), "scales is float16 with 1 dim"),
        (lambda t: t.update(qzeros=t["qzeros"][:, :-1]), "3 bits"),
        (lambda t: t.update(qzeros=t["qzeros"].repeat(1, 3)), "12 bits; exlchat reads GPTQ of 2, 3, 4 or 8"),
        (lambda t: t.update(qzeros=t["qzeros"][:, :6]), "16 rows of words, which codes of 3 bits do not fill"),
        (lambda t: t["scales"].__setitem__((2, 3), torch.nan), "scales holds what is no number"),
        (lambda t: t.update(scales=t["scales"].float() * 1e9), "scales holds what is no number"),
        (lambda t: t.update(qzeros=t["qzeros"].repeat(1, 2), g_idx=t["g_idx"][:0]), "g_idx has 0 rows but qweight 64"),
        (lambda t: t.update(scales=t["scales"][1:]), "scales is 3 x 64"),
        (lambda t: t.update(qweight=t["qweight"][:, :8]), "AWQ"),
        (lambda t: t.update(g_idx=t["g_idx"] + 1), "g_idx names group 4, but scales has 4"),
        (lambda t: t.update(g_idx=t["g_idx"] - 1), "g_idx names group -1"),
        (lambda t: t.update(g_idx=t["g_idx"][8:]), "g_idx has 120 rows but qweight 128"),
        (lambda t: t.update(qweight=t["qweight"][:0], g_idx=t["g_idx"][:0]), "empty"),
    ],
)
def test_layers_that_do_not_fit_together_are_named(
    change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    tensors = quantize_matrix(torch.randn(128, 64), GptqRecipe(32))
    change(tensors)
    with pytest.raises(ModelError, match=words) as error:
        weights_of(tensors, GptqSettings())
    assert "\n" not in str(error.value)


def test_a_group_size_that_makes_another_number_of_groups() -> None:
    tensors = quantize_matrix(torch.randn(128, 64), GptqRecipe(32))
    del tensors["g_idx"]
    with pytest.raises(ModelError, match="scales has 4 groups, but 128 rows of qweight in groups of 64"):
        weights_of(tensors, GptqSettings(group_size=64))
    assert same_bits(
        weights_of(tensors, GptqSettings(group_size=32)), weights_of(tensors, GptqSettings(group_size=None))
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 5}, "bits is 5; exlchat reads GPTQ of 2, 3, 4, 8 bits"),
        ({"bits": "four"}, "bits is 'four'"),
        ({"bits": 0}, "bits is 0"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": 4}, "quant_method is 4"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"checkpoint_format": 2}, "checkpoint_format is 2"),
        ({"sym": "yes"}, "sym is 'yes'"),
        ({"desc_act": 1}, "desc_act is 1"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        ({"modules_to_not_convert": [1]}, "modules_to_not_convert is"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": "big"}, "group_size is 'big'"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        read_quantization({"quantization_config": {**GptqRecipe().config(), **changes}}, "config.json")
    assert str(error.value).startswith("config.json: quantization_config: ")


def test_what_the_settings_say() -> None:
    def read(**changes: object) -> object:
        return read_quantization({"quantization_config": {**GptqRecipe(64).config(), **changes}}, "config.json")

    assert read() == GptqSettings(exact_zeros=False, symmetric=True, group_size=64, bits=4)
    assert read(checkpoint_format=None, sym=None, bits=3) == GptqSettings(group_size=64, bits=3)
    assert read(checkpoint_format="gptq_v2", group_size=-1) == GptqSettings(True, True, -1, 4)
    # Where layers differ, their tensors show how.
    assert read(dynamic={"+:.*down.*": {"bits": 8}}) == GptqSettings(symmetric=True)
    assert read_quantization({}, "config.json") is None
    assert read_quantization({"quantization_config": None}, "config.json") is None


def dequantized(stored: dict[str, torch.Tensor], recipe: GptqRecipe) -> dict[str, torch.Tensor]:
    """Everything in float32 under the names of a plain checkpoint."""
    how = GptqSettings(recipe.exact_zeros, recipe.symmetric, recipe.group_size)
    weights = {name: tensor.float() for name, tensor in stored.items() if name.endswith((".weight", ".bias"))}
    for key in {name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")}:
        parts = {name: stored[f"{key}.{name}"] for name in NAMES}
        weights[f"{key}.weight"] = weights_of(parts, how).float().T
    return weights


@torch.inference_mode()
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "recipe",
    [
        GptqRecipe(32),
        GptqRecipe(32, act_order=True),
        GptqRecipe(64, symmetric=False, exact_zeros=True),
        GptqRecipe(-1, bits=8),
        GptqRecipe(32, act_order=True, symmetric=False, bits=3),
        GptqRecipe(64, exact_zeros=True, bits=2),
    ],
    ids=["g32", "g32 act-order", "g64 asymmetric v2", "8-bit", "3-bit g32 act-order asymmetric", "2-bit g64 v2"],
)
def test_a_model_equals_transformers_on_the_dequantized_weights(recipe: GptqRecipe, tied: bool, tmp_path: Path) -> None:
    model = save_random_llama(tmp_path / "float", tie_word_embeddings=tied, attention_bias=True)
    source = {name: tensor for name, tensor in model.state_dict().items() if not tied or name != "lm_head.weight"}
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    write_model(source, model.config.to_dict(), tmp_path / "gptq", recipe, extra_files=files)

    model.load_state_dict(dequantized(load_file(tmp_path / "gptq" / "model.safetensors"), recipe), strict=not tied)
    ids = torch.randint(384, (50,), generator=torch.Generator().manual_seed(7))
    expected = model(ids.unsqueeze(0)).logits[0]
    found = logits_in_steps(open_transformer(tmp_path / "gptq"), ids.tolist(), [20, 30])
    assert relative_error(found, expected) < 1e-4
    info = load(tmp_path / "gptq", device="cpu").info
    size = "" if recipe.group_size == -1 else f" g{recipe.group_size}"
    assert info.quantization == f"GPTQ {recipe.bits}-bit{size}"
    assert info.parameters == sum(tensor.numel() for tensor in source.values())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    small = save_random_llama(tmp_path / "float")
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    write_model(
        small.state_dict(), small.config.to_dict(), tmp_path / "gptq", GptqRecipe(32, act_order=True), extra_files=files
    )
    return tmp_path / "gptq"


def problem(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path, device="cpu")
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_broken_layer_is_named_with_its_file(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    key = "model.layers.1.mlp.down_proj"
    save_file({**tensors, f"{key}.g_idx": tensors[f"{key}.g_idx"] + 50}, model / "model.safetensors")
    line = problem(model)
    assert f"model.safetensors: {key}: g_idx names group" in line


def test_sizes_are_those_of_the_configuration(model: Path) -> None:
    edit_json(model / "config.json", intermediate_size=128)
    assert "qweight holds 96 x 64 weights, but config.json makes it 128 x 64" in problem(model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "hqq"}, "quant_method is 'hqq'"),
        (
            {"quant_method": "awq"},
            "qweight is packed along the inputs, as GPTQ does, but quant_method of config.json says AWQ",
        ),
        ({"bits": 8}, "qweight has 64 columns but qzeros holds 32 at 8 bits; config.json and the tensors disagree"),
        ({"group_size": 64}, None),
    ],
)
def test_settings_that_belong_to_another_model(model: Path, changes: dict[str, object], words: str | None) -> None:
    config = json.loads((model / "config.json").read_text())
    edit_json(model / "config.json", quantization_config={**config["quantization_config"], **changes})
    if words is None:
        # With act-order g_idx says which group a row is in.
        assert load(model, device="cpu").info.quantization == "GPTQ 4-bit g32"
    else:
        assert words in problem(model)


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales"])
def test_tensors_of_another_shape_are_one_line(model: Path, part: str) -> None:
    key = "model.layers.0.self_attn.o_proj"
    tensors = load_file(model / "model.safetensors")
    for wrong in (tensors[f"{key}.{part}"][:0], tensors[f"{key}.{part}"].flatten(), tensors[f"{key}.{part}"][:, :3]):
        save_file({**tensors, f"{key}.{part}": wrong.contiguous()}, model / "model.safetensors")
        assert f"model.safetensors: {key}: " in problem(model)
    del tensors[f"{key}.{part}"]
    save_file(tensors, model / "model.safetensors")
    assert f"{key}: {part} is missing" in problem(model)


def test_a_bias_of_zeros_that_no_one_declared_is_left_out(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.bias"
    before = load(model, device="cpu").logits(range(20))
    save_file({**tensors, name: torch.zeros(64, dtype=torch.float16)}, model / "model.safetensors")
    assert torch.equal(load(model, device="cpu").logits(range(20)), before)
    save_file({**tensors, name: torch.ones(64, dtype=torch.float16)}, model / "model.safetensors")
    assert "bias that config.json does not declare" in problem(model)
