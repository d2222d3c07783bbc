"""What a path holds that is given for a model: models are opened, everything else is told for what it is, in a line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from exlchat.engine.formats import exl2_writer
from exlchat.engine.model_card import describe, look_around
from tests.random_models import edit_json, save_random_llama

IDS = range(20)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good")
    save_random_llama(path)
    return path


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def problem(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path, device="cpu")
    line = str(error.value)
    assert "\n" not in line
    assert describe(path, look_around("cpu")).problem == line
    return line


def with_tensor(model: Path, name: str, dtype: torch.dtype = torch.float16) -> None:
    file = model / "model.safetensors"
    save_file({**load_file(file), name: torch.zeros(8, 8).to(dtype)}, file)


@pytest.mark.parametrize(
    ("name", "beginning", "words"),
    [
        ("llama.Q4_K_M.gguf", b"GGUF", "is a GGUF file"),
        ("LLAMA.GGUF", b"GGUF", "is a GGUF file"),
        ("ggml-model-q4_0.bin", b"tjgg\x01\0\0\0", "is a GGML file"),
        ("ggml-model.bin", b"GGUF", "is a GGUF file"),
        ("pytorch_model.bin", b"PK\x03\x04", "is a pickle"),
        ("consolidated.00.pth", b"\x80\x02", "is a pickle"),
        ("model.onnx", b"\x08\x07", "is an ONNX graph"),
        ("flax_model.msgpack", b"\x80", "weights for Flax"),
        ("model.safetensors.incomplete", b"", "download that did not finish"),
    ],
)
def test_files_that_are_not_read(name: str, beginning: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(beginning)
    for path in (tmp_path, tmp_path / name):
        line = problem(path)
        assert words in line
        assert name in line
        assert "get the model as EXL2, GPTQ, AWQ or safetensors" in line
    (tmp_path / "config.json").write_text("{}")
    assert words in problem(tmp_path)


def test_one_file_of_a_model(model: Path) -> None:
    assert f"one file of a model; give the folder it lies in, {model}" in problem(model / "model.safetensors")


def test_links_that_lead_nowhere(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert f"is a link to {tmp_path / 'gone'}, which is not there" in problem(tmp_path / "link")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "is a link to" in problem(tmp_path / "loop")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (model / name).rename(model / "kept")
        (model / name).symlink_to("../../blobs/1234")
        assert f"{model / name}: is a link to ../../blobs/1234, which is not there" in problem(model)
        (model / "kept").replace(model / name)


def test_an_adapter_alone_and_beside_a_model(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    save_file({"base_model.model.x.lora_A.weight": torch.zeros(2, 2)}, adapter / "adapter_model.safetensors")
    assert "this is an adapter (LoRA), not a model; give the folder of its base model" in problem(adapter)
    shutil.copy(model / "config.json", adapter)
    assert "this is an adapter (LoRA), not a model" in problem(adapter)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / file, model)
    assert "holds a model and an adapter (LoRA), which exlchat does not apply" in problem(model)


def test_mistrals_own_copy_of_the_weights_is_left_aside(model: Path, tmp_path: Path) -> None:
    before = load(model, device="cpu")
    tensors = {"layers.0.attention.wq.weight": torch.zeros(64, 64), "norm.weight": torch.zeros(64)}
    save_file(tensors, model / "consolidated.safetensors")
    after = load(model, device="cpu")
    assert torch.equal(after.logits(IDS), before.logits(IDS))
    assert after.info.parameters == before.info.parameters
    (model / "model.safetensors").unlink()
    line = problem(model)
    assert "consolidated.safetensors: holds the weights as Mistral's own programs name them" in line
    assert "get the model-*.safetensors" in line


def test_mistrals_own_copy_beside_shards(tmp_path: Path) -> None:
    save_random_llama(tmp_path, shard_size="100KB")
    before = load(tmp_path, device="cpu").logits(IDS)
    save_file({"norm.weight": torch.zeros(64)}, tmp_path / "consolidated.00.safetensors")
    assert torch.equal(load(tmp_path, device="cpu").logits(IDS), before)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert torch.equal(load(tmp_path, device="cpu").logits(IDS), before)
    min(tmp_path.glob("model-*.safetensors")).unlink()
    assert "model-00001-of-" in problem(tmp_path)


def test_two_sets_of_shards(tmp_path: Path) -> None:
    save_random_llama(tmp_path, shard_size="100KB")
    for shard in sorted(tmp_path.glob("model-*.safetensors")):
        shutil.copy(shard, tmp_path / shard.name.replace("model-", "other-"))
    assert load(tmp_path, device="cpu").info.quantization == "F32"
    (tmp_path / "model.safetensors.index.json").unlink()
    line = problem(tmp_path)
    assert "so these are two models; keep one model in the directory" in line
    assert "model-00001-of-" in line
    assert "other-00001-of-" in line


@pytest.mark.parametrize("indexed", [False, True])
def test_a_quantized_model_beside_the_one_it_was_made_of(indexed: bool, model: Path, tmp_path: Path) -> None:
    """An EXL2 folder holds the index of its source, which names files that are usually not there."""
    config = json.loads((model / "config.json").read_text())
    tensors = load_file(model / "model.safetensors")
    exl2_writer.write_model(tensors, config, tmp_path / "exl2")
    shutil.copy(tmp_path / "exl2" / "output.safetensors", model)
    if indexed:
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
    line = problem(model)
    assert "output.safetensors" in line
    assert "model.safetensors" in line
    assert "keep one model in the directory" in line
    (model / "model.safetensors").unlink()
    assert load(model, device="cpu").info.quantization.startswith("EXL2")


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "exl3", "bits": 3.0}, "'exl3'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "'fp8'"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "hqq"}, "'hqq'"),
        ({"quant_method": "aqlm"}, "'aqlm'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "something new"}, "'something new'"),
    ],
)
def test_other_ways_of_quantizing_by_the_configuration(quantization: dict[str, Any], name: str, model: Path) -> None:
    edit_json(model / "config.json", quantization_config=quantization)
    line = problem(model)
    assert f"{model / 'config.json'}: quantization_config: quant_method is " in line
    assert name in line
    assert "get the model as EXL2, GPTQ, AWQ (gemm) or unquantized" in line


def test_mlx(model: Path) -> None:
    both = {"group_size": 64, "bits": 4}
    edit_json(model / "config.json", quantization=both, quantization_config=both)
    assert "config.json: quantization says that this is MLX, for Apple's chips" in problem(model)


@pytest.mark.parametrize(
    ("tensor", "method"),
    [
        ("q_proj.trellis", "EXL3"),
        ("q_proj.weight_scale_inv", "FP8"),
        ("q_proj.weight_packed", "compressed-tensors"),
        ("q_proj.weight.absmax", "bitsandbytes"),
        ("q_proj.W_q", "HQQ"),
        ("q_proj.codebooks", "AQLM"),
        ("q_proj.biases", "MLX"),
        ("q_proj.weight_scale_2", "NVFP4"),
    ],
)
def test_other_ways_of_quantizing_by_their_tensors(tensor: str, method: str, model: Path) -> None:
    with_tensor(model, f"model.layers.0.self_attn.{tensor}")
    line = problem(model)
    assert f"model.layers.0.self_attn.{tensor} shows that this is {method}" in line
    assert "get the model as EXL2, GPTQ, AWQ (gemm) or unquantized" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["BertModel"]}, "names BertModel, which makes vectors or labels and no text"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "makes vectors or labels and no text"),
        ({"architectures": ["ModernBertForMaskedLM"]}, "makes vectors or labels and no text"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "reads with an encoder"),
        ({"architectures": ["MambaLMHeadModel"]}, "MambaLMHeadModel"),
        ({"architectures": ["CLIPModel"]}, "CLIPModel"),
    ],
)
def test_models_of_another_kind(changes: dict[str, Any], words: str, model: Path) -> None:
    edit_json(model / "config.json", **changes)
    assert words in problem(model)


def test_a_diffusion_model(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text("{}")
    assert "is a diffusion model, which makes pictures" in problem(tmp_path)


def in_hub_cache(root: Path, name: str, commit: str, model: Path, *, age: float = 0.0) -> Path:
    snapshot = root / name / "snapshots" / commit
    shutil.copytree(model, snapshot)
    os.utime(snapshot, (1e9 - age, 1e9 - age))
    return snapshot


def test_folders_of_the_hub_cache_name_the_newest_snapshot(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    old = in_hub_cache(root, "models--org--llama", "aaa", model, age=60.0)
    new = in_hub_cache(root, "models--org--llama", "bbb", model)
    folder = root / "models--org--llama"
    for path in (folder, folder / "snapshots"):
        assert f"is a folder of the Hugging Face cache; give the model in it: {new}" in problem(path)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("aaa")
    assert str(old) in problem(folder)
    assert f"one folder further down; give {old}" in problem(root)
    (folder / "refs" / "main").write_bytes(b"\xff")
    assert str(new) in problem(folder)


def test_a_folder_of_models_lists_them(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "models"
    for name in ("b", "a", "c", "d", "e"):
        shutil.copytree(model, root / name)
    (root / "notes").mkdir()
    assert f"is a folder of 5 models (a, b, c, d, ...); give one of them, as {root / 'a'}" in problem(root)
    for name in ("b", "c", "d", "e"):
        shutil.rmtree(root / name)
    assert f"the model lies one folder further down; give {root / 'a'}" in problem(root)


def test_weights_without_config(model: Path) -> None:
    (model / "config.json").unlink()
    assert "has no config.json, only weights" in problem(model)
    (model / "params.json").write_text("{}")
    assert "holds a model in its maker's own layout" in problem(model)


Damage = Callable[[dict[str, torch.Tensor]], None]


@pytest.mark.parametrize("tied", [False, True])
def test_half_a_head_is_no_head(tied: bool, good: Path, tmp_path: Path) -> None:
    """A tied model without a head uses its embedding; one whose head lost its codes must not."""
    config = {**json.loads((good / "config.json").read_text()), "tie_word_embeddings": tied}
    files = [good / name for name in ("tokenizer.json", "tokenizer_config.json")]
    exl2_writer.write_model(load_file(good / "model.safetensors"), config, tmp_path, extra_files=files)
    tensors = load_file(tmp_path / "output.safetensors")
    del tensors["lm_head.q_weight"]
    save_file(tensors, tmp_path / "output.safetensors")
    with pytest.raises(ModelError, match=r"output\.safetensors: lm_head: q_weight is missing"):
        load(tmp_path, device="cpu")
