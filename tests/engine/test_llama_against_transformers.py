"""Random Llamas of many shapes: our logits are those of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2_writer import EIGHT_BITS, Section, write_model
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.random_models import save_random_llama

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one key-value head": {"num_key_value_heads": 1},
    "every head its own": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "odd sizes": {"hidden_size": 72, "intermediate_size": 100, "vocab_size": 391, "head_dim": 18},
    "wide heads": {"head_dim": 48},
    "one layer, one head": {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "other base and eps": {"rms_norm_eps": 1e-3, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    "linear rope": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}},
    "llama3 rope": {"rope_parameters": {"rope_theta": 1e4, **LLAMA3, "original_max_position_embeddings": 64}},
    "llama3 rope, longer original": {
        "rope_parameters": {"rope_theta": 500000.0, **LLAMA3, "original_max_position_embeddings": 256}
    },
}


def random_ids(vocab_size: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(vocab_size, (count,), generator=generator).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_dense_model(name: str, tmp_path: Path) -> None:
    model = save_random_llama(tmp_path, seed=len(name), **CONFIGS[name])
    ids = random_ids(model.config.vocab_size, 160)
    expected = model(torch.tensor([ids])).logits[0]
    transformer = open_transformer(tmp_path)
    for steps in ([160], [60, 1, 99], [1] * 160):
        assert relative_error(logits_in_steps(transformer, ids, steps), expected) < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_file_in_shards(dtype: torch.dtype, tmp_path: Path) -> None:
    model = save_random_llama(tmp_path)
    model.to(dtype).save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    (tmp_path / "model.safetensors").unlink()
    ids = random_ids(384, 40)
    # Loaded anew: `model.to` has rounded the rotary frequencies, which no file holds.
    reference = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    expected = reference(torch.tensor([ids])).logits[0]
    assert relative_error(logits_in_steps(open_transformer(tmp_path), ids, [40]), expected) < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "body",
    [EIGHT_BITS, (Section(6, 0.5, 32), Section(3, 0.5, 32)), (Section(5, 0.25, 32), Section(2, 0.75, 32))],
    ids=["8", "6+3", "5+2"],
)
def test_exl2_model_equals_transformers_on_the_dequantized_weights(
    body: tuple[Section, ...], tied: bool, tmp_path: Path
) -> None:
    model = save_random_llama(tmp_path / "float", vocab_size=391, tie_word_embeddings=tied, attention_bias=True)
    source = {name: tensor for name, tensor in model.state_dict().items() if not tied or name != "lm_head.weight"}
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    write_model(source, model.config.to_dict(), tmp_path / "exl2", body=body, extra_files=files)

    stored = load_file(tmp_path / "exl2" / "output.safetensors")
    layers = {name.removesuffix(".q_weight") for name in stored if name.endswith(".q_weight")}
    weights = {name: tensor.float() for name, tensor in stored.items() if name.endswith((".weight", ".bias"))}
    for key in layers:
        parts = {name: stored[f"{key}.{name}"] for name in exl2.TENSORS}
        weights[f"{key}.weight"] = exl2.dequantize(parts).float().T
    # The format pads the head's 391 outputs to 416.
    weights["lm_head.weight"] = weights["lm_head.weight"][:391]
    model.lm_head.weight = torch.nn.Parameter(weights["lm_head.weight"].clone())
    model.load_state_dict(weights)
    ids = random_ids(391, 50)
    expected = model(torch.tensor([ids])).logits[0]
    found = logits_in_steps(open_transformer(tmp_path / "exl2"), ids, [20, 30])
    assert relative_error(found, expected) < 1e-4
