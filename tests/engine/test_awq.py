"""AWQ against numpy's unpacking of random words, and whole models against `transformers` on the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from exlchat.engine.formats import awq, grouped
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.awq_writer import quantize_matrix, write_model
from exlchat.engine.formats.quantization_config import read_quantization
from tests.engine.bit_streams import awq_rows, random_awq, scaled
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.test_gptq import same_bits
from tests.random_models import edit_json, save_random_llama

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}


def test_worked_example() -> None:
    """One word whose four bits count up from the lowest: outputs 0, 2, 4, 6, 1, 3, 5, 7 have codes 0 to 7."""
    tensors = {
        "qweight": torch.tensor([[0x76543210]], dtype=torch.int32),
        "qzeros": torch.tensor([[0x00000030]], dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }
    # The zero point 3 is the second four bits', that of output 2.
    assert awq.dequantize(tensors).tolist() == [[0.0, 2.0, -1.0, 2.5, 1.0, 3.0, 1.5, 3.5]]


@pytest.mark.parametrize(
    ("features", "outputs", "groups", "size"),
    [(128, 64, 4, 32), (100, 8, 1, 100), (256, 2080, 2, 128), (352, 32, 3, 128)],
)
def test_dequantize_equals_the_unpacking_of_the_description(
    features: int, outputs: int, groups: int, size: int
) -> None:
    tensors = random_awq(features, outputs, groups)
    codes, zeros = awq_rows(tensors["qweight"]), awq_rows(tensors["qzeros"])
    assert same_bits(awq.dequantize(tensors), scaled(codes, zeros, tensors["scales"], np.arange(features) // size))


@settings(max_examples=20)
@given(st.sampled_from([32, 64, 128, -1]), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31))
def test_what_is_written_is_read_back_within_half_a_step(size: int, k: int, n: int, seed: int) -> None:
    weight = torch.randn(32 * k, 8 * n, generator=torch.Generator().manual_seed(seed)) * 0.02
    tensors = quantize_matrix(weight, size)
    layer = awq.read_layer(tensors, AwqSettings(size))
    error = (grouped.dequantize(layer).float() - weight).abs()
    # The zero point is rounded too, which may cut the far end of a range by half a step more.
    assert (error <= tensors["scales"].float()[layer.groups] * 1.01 + weight.abs() * 2**-10).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("qzeros"), "qzeros is missing"),
        (lambda t: t.update(qweight=t["qweight"].short()), "qweight is int16"),
        (lambda t: t.update(scales=t["scales"][0]), "scales is float16 with 1 dim"),
        (lambda t: t.update(qzeros=t["qzeros"][:, :-1]), "qweight 128 x 8, qzeros 4 x 7, scales 4 x 64 do not fit"),
        (lambda t: t.update(scales=t["scales"][1:]), "qzeros 4 x 8, scales 3 x 64 do not fit"),
        (lambda t: t.update(qweight=t["qweight"].repeat(1, 8)), "as GPTQ does"),
        (lambda t: t.update(qweight=t["qweight"][:96]), "scales has 4 groups, but 96 rows of qweight in groups of 32"),
        (lambda t: t.update(qweight=t["qweight"][:0]), "empty"),
        (lambda t: t["scales"].__setitem__((0, 0), torch.inf), "scales holds what is no number"),
    ],
)
def test_layers_that_do_not_fit_together_are_named(
    change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    tensors = random_awq(128, 64, 4)
    change(tensors)
    with pytest.raises(ModelError, match=words) as error:
        awq.read_layer(tensors, AwqSettings(32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "gemv"}, "version is 'gemv'; of AWQ exlchat reads gemm alone"),
        ({"version": "marlin"}, "version is 'marlin'"),
        ({"version": "exllama"}, "version is 'exllama'"),
        ({"version": 2}, "version is 2"),
        ({"bits": 8}, "bits is 8; exlchat reads AWQ of 4 bits"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": True}, "group_size is True"),
        ({"zero_point": "yes"}, "zero_point is 'yes'"),
        ({"modules_to_not_convert": {"a": 1}}, "modules_to_not_convert is"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        read_quantization({"quantization_config": {**CONFIG, **changes}}, "config.json")
    assert str(error.value).startswith("config.json: quantization_config: ")


def test_what_the_settings_say() -> None:
    def read(**changes: object) -> object:
        return read_quantization({"quantization_config": {**CONFIG, **changes}}, "config.json")

    assert read() == AwqSettings(32)
    # As AutoAWQ's own files spell it, and with what transformers adds.
    assert read(version="GEMM", modules_to_not_convert=["lm_head"], group_size=-1) == AwqSettings(-1)
    assert read(version=None, group_size=None) == AwqSettings()


def written(path: Path, size: int, **config: object) -> tuple[torch.nn.Module, Path]:
    """A random model, in float32 with the weights that its AWQ files stand for, and their folder."""
    model = save_random_llama(path / "float", **config)
    source = {name: part for name, part in model.state_dict().items() if name != "lm_head.weight" or not config}
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    write_model(source, model.config.to_dict(), path / "awq", size, extra_files=files)
    stored = load_file(path / "awq" / "model.safetensors")
    weights = {name: part.float() for name, part in stored.items() if name.endswith((".weight", ".bias"))}
    for key in {name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")}:
        codes, zeros = awq_rows(stored[f"{key}.qweight"]), awq_rows(stored[f"{key}.qzeros"])
        rows = np.arange(len(codes)) // (len(codes) if size == -1 else size)
        weights[f"{key}.weight"] = scaled(codes, zeros, stored[f"{key}.scales"], rows).float().T
    model.load_state_dict(weights, strict=not config)
    return model, path / "awq"


@torch.inference_mode()
@pytest.mark.parametrize("size", [32, 64, -1])
@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True, "attention_bias": True}], ids=["", "tied"])
def test_a_model_equals_transformers_on_the_dequantized_weights(
    size: int, config: dict[str, object], tmp_path: Path
) -> None:
    model, path = written(tmp_path, size, **config)
    ids = torch.randint(384, (50,), generator=torch.Generator().manual_seed(7))
    expected = model(ids.unsqueeze(0)).logits[0]
    found = logits_in_steps(open_transformer(path), ids.tolist(), [20, 30])
    assert relative_error(found, expected) < 1e-4
    info = load(path, device="cpu").info
    assert info.quantization == ("AWQ 4-bit" if size == -1 else f"AWQ 4-bit g{size}")
    names = {name: part.numel() for name, part in model.state_dict().items() if name != "lm_head.weight" or not config}
    assert info.parameters == sum(names.values())


def test_without_settings_the_tensors_show_that_it_is_awq(tmp_path: Path) -> None:
    _, path = written(tmp_path, 32)
    before = load(path, device="cpu").logits(range(20))
    edit_json(path / "config.json", quantization_config=None)
    assert torch.equal(load(path, device="cpu").logits(range(20)), before)


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales"])
def test_tensors_of_another_shape_are_one_line(part: str, tmp_path: Path) -> None:
    _, path = written(tmp_path, 32)
    key = "model.layers.1.mlp.up_proj"
    tensors = load_file(path / "model.safetensors")
    for wrong in (tensors[f"{key}.{part}"][:0], tensors[f"{key}.{part}"].flatten(), tensors[f"{key}.{part}"][:, :3]):
        save_file({**tensors, f"{key}.{part}": wrong.contiguous()}, path / "model.safetensors")
        with pytest.raises(ModelError, match=f"model.safetensors: {key}: ") as error:
            load(path, device="cpu")
        assert "\n" not in str(error.value)
