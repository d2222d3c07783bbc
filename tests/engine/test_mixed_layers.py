"""Checkpoints in which some layers are quantized and some are not: the names of the tensors say which."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import load
from exlchat.engine.formats import awq_writer, exl2_writer, gptq, gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.inventory import parameter_count, weight_sizes
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.layers.linear import SideBySide
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case
from tests.engine.test_quantized_linear import CPU, open_quantized
from tests.random_models import edit_json, save_random_llama

KINDS = ["exl2", "gptq", "gptq-8", "awq"]
# Whole pieces of the kernels' layout.
SIZES = {"hidden_size": 128, "intermediate_size": 256}
# Modules that stay floats: one of three that are joined, one alone, and a whole layer's MLP.
FLOATS = ("model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.o_proj", "model.layers.1.mlp")


def mixed(path: Path, kind: str, *, head: bool) -> tuple[Path, dict[str, torch.Tensor]]:
    """A model directory, and the float weights of the modules that stay floats.

    head: with the head quantized too, where the writer does not do that by itself.
    """
    model = save_random_llama(path / "float", **SIZES)
    source, config = model.state_dict(), model.config.to_dict()
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    recipe = GptqRecipe(32, act_order=True, bits=8 if kind == "gptq-8" else 4)
    if kind == "exl2":
        exl2_writer.write_model(source, config, path / kind, extra_files=files)
    elif kind == "awq":
        awq_writer.write_model(source, config, path / kind, 32, extra_files=files)
    else:
        gptq_writer.write_model(source, config, path / kind, recipe, extra_files=files)
    file = next((path / kind).glob("*.safetensors"))
    floats = {name: tensor.half() for name, tensor in source.items() if name.startswith(FLOATS)}
    stored = {name: tensor for name, tensor in load_file(file).items() if not name.startswith(FLOATS)}
    weight = source["lm_head.weight"].T
    if head and kind != "exl2":
        del stored["lm_head.weight"]
        parts = awq_writer.quantize_matrix(weight, 32) if kind == "awq" else gptq_writer.quantize_matrix(weight, recipe)
        stored |= {f"lm_head.{name}": tensor for name, tensor in parts.items()}
    save_file({**stored, **floats}, file)
    return path / kind, floats


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [False, True])
@torch.inference_mode()
def test_both_ways_through_a_mixed_model_agree(kind: str, head: bool, tmp_path: Path) -> None:
    path, floats = mixed(tmp_path, kind, head=head)
    loader = LayerLoader(Checkpoint(path), CPU, torch.float32)
    model = save_random_llama(tmp_path / "again", **SIZES)
    # transformers on what each linear layer alone stands for: the loader's weights are checked format by format.
    stored = load_file(next(path.glob("*.safetensors")))
    weights = {name: part.float() for name, part in stored.items() if name.endswith(".weight")}
    for name, parameter in model.state_dict().items():
        if name not in weights:
            outputs, features = parameter.shape
            weights[name] = loader.linear(name.removesuffix(".weight"), features, outputs, bias=False).weight
    assert all(torch.equal(weights[name], part.float()) for name, part in floats.items())
    model.load_state_dict(weights)
    ids = torch.randint(384, (40,), generator=torch.Generator().manual_seed(7))
    expected = model(ids.unsqueeze(0)).logits[0]
    plain = logits_in_steps(open_transformer(path), ids.tolist(), [15, 25])
    assert relative_error(plain, expected) < 1e-4
    quantized = open_quantized(path)
    assert isinstance(quantized.layers[0].qkv, SideBySide) or kind == "gptq-8"
    assert relative_error(logits_in_steps(quantized, ids.tolist(), [30, 1, 9], kv_cache="fp16"), expected) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_model_is_counted_as_it_is_held(kind: str, tmp_path: Path) -> None:
    path, _ = mixed(tmp_path, kind, head=True)
    checkpoint = Checkpoint(path)
    sizes = weight_sizes(checkpoint, stay_quantized=True)
    assert open_quantized(path).bytes == pytest.approx(sizes.bytes(torch.float16), rel=0.15)
    model = save_random_llama(tmp_path / "again", **SIZES)
    assert parameter_count(checkpoint) == sum(part.numel() for part in model.state_dict().values())
    wanted = {"exl2": "EXL2 8.", "gptq": "GPTQ 4-bit g32", "gptq-8": "GPTQ 8-bit g32", "awq": "AWQ 4-bit g32"}[kind]
    assert load(path, device="cpu").info.quantization.startswith(wanted)


@pytest.mark.parametrize("names", [["k_proj"], [], None])
def test_the_list_in_the_settings_decides_nothing(names: list[str] | None, tmp_path: Path) -> None:
    path, _ = mixed(tmp_path, "awq", head=False)
    before = load(path, device="cpu").logits(range(20))
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": names}
    edit_json(path / "config.json", quantization_config=quantization)
    assert torch.equal(load(path, device="cpu").logits(range(20)), before)


def test_layers_of_different_widths(tmp_path: Path) -> None:
    """As GPTQModel writes them, with `dynamic` in the settings."""
    path, _ = mixed(tmp_path, "gptq", head=False)
    wide = gptq_writer.quantize_matrix(torch.randn(128, 128), GptqRecipe(64, bits=8))
    stored = load_file(path / "model.safetensors")
    key = "model.layers.1.self_attn.q_proj"
    save_file({**stored, **{f"{key}.{name}": part for name, part in wide.items()}}, path / "model.safetensors")
    quantization = {**GptqRecipe(32, act_order=True).config(), "dynamic": {"+:.*1.*q_proj": {"bits": 8}}}
    edit_json(path / "config.json", quantization_config=quantization)
    assert load(path, device="cpu").info.quantization == "GPTQ 4/8-bit g64"
    quantized = open_quantized(path)
    assert isinstance(quantized.layers[1].qkv, SideBySide)
    assert isinstance(quantized.layers[1].output, QuantizedLinear)


@torch.inference_mode()
def test_a_router_that_is_quantized_too(tmp_path: Path) -> None:
    case = CASES["mixtral"]
    save_case(replace(case, changes={**case.changes, "num_local_experts": 8}), tmp_path / "dense")
    source, config = load_file(tmp_path / "dense" / "model.safetensors"), tmp_path / "dense" / "config.json"
    path, recipe = tmp_path / "gptq", GptqRecipe(32)
    gptq_writer.write_model(source, json.loads(config.read_text()), path, recipe)
    file = next(path.glob("*.safetensors"))
    stored, quantized = load_file(file), {}
    for name in [name for name in stored if ".gate.weight" in name]:
        key = name.removesuffix(".weight")
        parts = gptq_writer.quantize_matrix(stored.pop(name).T, recipe)
        quantized |= {f"{key}.{part}": tensor for part, tensor in parts.items()}
        stored[name] = gptq.dequantize(parts).T.contiguous()
    assert quantized
    save_file(stored, file)
    ids = list(range(40))
    wanted = logits_in_steps(open_transformer(path), ids, [40])
    save_file({name: tensor for name, tensor in stored.items() if ".gate.weight" not in name} | quantized, file)
    assert torch.equal(logits_in_steps(open_transformer(path), ids, [40]), wanted)
