"""Damaged model directories: each is refused in one line that names file and key, or computes what it should.

What it should compute is what the undamaged model does or, where a key means another model, what `transformers` makes
of the same directory (for quantized models, of their dequantized weights under the same `config.json`).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from exlchat.engine.formats import awq, awq_writer, exl2, exl2_writer, gptq, gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.sections import SIX_BITS
from tests.engine.mutation_faults import Base, base, fault, quick_and_small
from tests.engine.mutations import every_mutation
from tests.random_models import edit_json, save_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
TIED = {"tie_word_embeddings": True}
SHARED_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
DENSE: dict[str, tuple[type[PreTrainedModel], type[Any], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama tied": (LlamaForCausalLM, LlamaConfig, {**TIED, "attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32, **TIED}),
}
QUANTIZED: dict[str, Callable[[dict[str, torch.Tensor], dict[str, Any], Path], None]] = {
    "exl2": lambda source, config, path: exl2_writer.write_model(source, config, path, body=SIX_BITS),
    "gptq": lambda source, config, path: gptq_writer.write_model(source, config, path, GptqRecipe(32)),
    "gptq act-order": lambda source, config, path: gptq_writer.write_model(
        source, config, path, GptqRecipe(32, act_order=True, symmetric=False)
    ),
    "awq": lambda source, config, path: awq_writer.write_model(source, config, path, 32),
}


@pytest.fixture(scope="module", autouse=True)
def limits() -> Iterator[None]:
    with quick_and_small():
        yield


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    root = tmp_path_factory.mktemp("bases")
    made = {}
    for name in DENSE:
        made[name] = base(dense(name, root / name), root / name)
    made["llama of before"] = base(_older_config(root / "llama", root / "older"), root / "older")
    for name, write in QUANTIZED.items():
        made[name] = base(quantized(root / "llama", root / name, write), _dequantized(root / name, root))
    return made


def dense(name: str, folder: Path) -> Path:
    kind, config, changes = DENSE[name]
    torch.manual_seed(0)
    model = kind(config(**{**SIZES, **changes})).eval()
    for key, parameter in model.named_parameters():
        if "norm" in key or key.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in key else 0.0, std=0.2)
    model.save_pretrained(folder, max_shard_size="400KB" if name == "qwen2" else "1GB")
    save_tokenizer(folder)
    return folder


def _older_config(source: Path, folder: Path) -> Path:
    """As Llama 3.1 came: bases and stretching of positions beside each other, no `head_dim`."""
    shutil.copytree(source, folder)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    edit_json(folder / "config.json", rope_parameters=None, head_dim=None, rope_theta=5e5, rope_scaling=scaling)
    return folder


def quantized(
    source: Path, folder: Path, write: Callable[[dict[str, torch.Tensor], dict[str, Any], Path], None]
) -> Path:
    config = json.loads((source / "config.json").read_text())
    write(load_file(source / "model.safetensors"), config, folder)
    for name in SHARED_FILES:
        shutil.copy(source / name, folder / name)
    return folder


def _dequantized(folder: Path, root: Path) -> Path:
    """The same model in float32, for `transformers`."""
    floats = root / f"{folder.name} in floats"
    floats.mkdir()
    config = json.loads((folder / "config.json").read_text())
    method = config.pop("quantization_config")
    (floats / "config.json").write_text(json.dumps(config))
    stored = load_file(next(folder.glob("*.safetensors")))
    weights = {name: tensor.float() for name, tensor in stored.items() if name.endswith((".weight", ".bias"))}
    for key in {name.rpartition(".")[0] for name in stored if name.endswith(("qweight", "q_weight"))}:
        parts = {name.removeprefix(f"{key}."): part for name, part in stored.items() if name.startswith(f"{key}.")}
        how = {"exl2": exl2.dequantize, "gptq": gptq.dequantize, "awq": awq.dequantize}[method["quant_method"]]
        weights[f"{key}.weight"] = how(parts).float().T.contiguous()
    save_file(weights, floats / "model.safetensors")
    return floats


NAMES = (*DENSE, "llama of before", *QUANTIZED)
# Of 1,200 to 2,300 of each, all of which were tried; these take the test some 10 seconds.
EACH = 100


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sweep(3)
def test_a_damaged_directory_is_told_or_harmless(name: str, bases: dict[str, Base], tmp_path: Path) -> None:
    everything = list(every_mutation(bases[name].folder, seed=NAMES.index(name)))
    chosen = random.Random(name).sample(everything, EACH)
    faults = {mutation.label: fault(bases[name], mutation, tmp_path / "model") for mutation in chosen}
    assert {label: what for label, what in faults.items() if what is not None} == {}
