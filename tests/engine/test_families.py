"""Architectures beside Llama's against `transformers`: as floats, and through the chain of the decode step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from exlchat.engine.architecture import read_spec
from exlchat.engine.formats import gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.step_chain import why_not
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.test_step_chain import chain_logits, new_cache, open_quantized
from tests.random_models import save_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_theta": 1e6,
    "initializer_range": 0.1,
    "attn_implementation": "eager",
}
UPPER_WINDOWS = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
MODELS = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2 with windows": (Qwen2ForCausalLM, Qwen2Config, UPPER_WINDOWS),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "qwen3 tied": (Qwen3ForCausalLM, Qwen3Config, {"tie_word_embeddings": True}),
}


def save(name: str, path: Path) -> PreTrainedModel:
    """A random model whose norms and biases do something."""
    kind, config, changes = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**{**SIZES, **changes})).eval()
    for key, parameter in model.named_parameters():
        if "norm" in key or key.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in key else 0.0, std=0.2)
    model.save_pretrained(path)
    save_tokenizer(path)
    return model


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save(name, tmp_path)
    ids = torch.randint(384, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = model(torch.tensor([ids])).logits[0]
    transformer = open_transformer(tmp_path)
    for steps in ([300], [100, *[1] * 40, 160]):
        assert relative_error(logits_in_steps(transformer, ids, steps), wanted) < 1e-4


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen2", "qwen2 with windows", "qwen3"])
def test_the_step_computes_the_same(name: str, tmp_path: Path) -> None:
    model = save(name, tmp_path / "float")
    files = [tmp_path / "float" / file for file in ("tokenizer.json", "tokenizer_config.json")]
    state, config = model.state_dict(), model.config.to_dict()
    gptq_writer.write_model(state, config, tmp_path / "gptq", GptqRecipe(32), extra_files=files)
    transformer = open_quantized(tmp_path / "gptq")
    assert why_not(transformer, new_cache(transformer, 1)) is None
    ids = torch.randint(384, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(tmp_path / "gptq"), ids, [300])
    assert relative_error(chain_logits(transformer, ids, 250), wanted[250:]) < 1e-2


def test_windows_of_the_upper_layers() -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], **SIZES, "num_hidden_layers": 4, "sliding_window": 128}
    assert read_spec(config, "config.json").windows == (0, 0, 0, 0)
    config |= {"use_sliding_window": True, "max_window_layers": 3}
    assert read_spec(config, "config.json").windows == (0, 0, 0, 128)
    assert read_spec(config | {"max_window_layers": 0}, "config.json").windows == (128,) * 4
