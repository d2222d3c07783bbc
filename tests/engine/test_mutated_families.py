"""Damaged directories of every architecture: each is refused in one line that names file and key, or computes what it
should.

What `transformers` makes of the same directory says what that is; for architectures that it does not have, of the model
they were written from, under the same damage (see `family_models`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

from tests.engine.family_models import (
    CASES,
    Case,
    as_exaone,
    as_internlm2,
    as_minicpm,
    as_old_olmo3,
    as_orion,
    as_yi,
    random_model,
    save_case,
)
from tests.engine.mutation_faults import Base, base, fault, quick_and_small
from tests.engine.mutations import mutations_of_the_model

Config = dict[str, Any]
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def from_internlm2(config: Config) -> Config:
    return {**config, **LLAMA, "attention_bias": config.pop("bias", True)}


def from_exaone(config: Config) -> Config:
    return {
        "tie_word_embeddings": True,
        **config,
        **LLAMA,
        "num_hidden_layers": config["num_layers"],
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "hidden_act": config.get("activation_function", "silu"),
    }


def from_minicpm(config: Config) -> Config:
    return {
        "tie_word_embeddings": True,
        **config,
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "embedding_multiplier": config.get("scale_emb", 1.0),
        "residual_multiplier": config.get("scale_depth", 1.0) / config["num_hidden_layers"] ** 0.5,
        "logits_scaling": config["hidden_size"] / config.get("dim_model_base", 1),
        "attention_multiplier": (config["hidden_size"] / config["num_attention_heads"]) ** -0.5,
    }


def from_orion(config: Config) -> Config:
    # Keys that Orion has not, and StableLM has.
    other = {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "qk_layernorm": False}
    other |= {"use_parallel_residual": False, "layer_norm_eps": config.get("rms_norm_eps", 1e-5)}
    return {"partial_rotary_factor": 1.0, **config, **other}


def from_yi(config: Config) -> Config:
    return {"rope_theta": 5e6, **config, **LLAMA}


def from_old_olmo3(config: Config) -> Config:
    # `transformers` 5 takes its default base for layers with a window, whatever `rope_theta` says.
    plain = {"rope_type": "default", "rope_theta": config.get("rope_theta", 5e5)}
    return {**config, "rope_parameters": {"full_attention": plain, "sliding_attention": dict(plain)}}


def from_images(config: Config) -> Config:
    text = {**config, **config["text_config"]}
    if config["architectures"] == ["Qwen2VLForConditionalGeneration"]:
        own = Qwen2VLTextConfig()
        defaults = {"rms_norm_eps": own.rms_norm_eps, "rope_theta": own.default_theta}
        text = {**defaults, "max_window_layers": own.max_window_layers, **text}
    del text["architectures"], text["text_config"]
    return text


BACK: dict[Any, Callable[[Config], Config]] = {
    as_internlm2: from_internlm2,
    as_exaone: from_exaone,
    as_minicpm: from_minicpm,
    as_orion: from_orion,
    as_yi: from_yi,
    as_old_olmo3: from_old_olmo3,
}


@pytest.fixture(scope="module", autouse=True)
def limits() -> Iterator[None]:
    with quick_and_small():
        yield


def undamaged(name: str, root: Path) -> Base:
    case: Case = CASES[name]
    save_case(case, root / "base")
    back = from_images if "with images" in name else BACK.get(case.rewrite)
    if back is None:
        return base(root / "base")
    random_model(case).save_pretrained(root / "twin")
    return base(root / "base", root / "twin", back)


# Of some 600 to 1,000 of each, all of which were tried; these take the test some 30 seconds.
EACH = 12
# What earlier versions got wrong: another tensor's name in the line, no line, or other logits.
ONCE_WRONG = {
    "ministral": ("config.json: sliding_window null", "config.json: sliding_window zero"),
    "mistral": ("config.json: sliding_window zero",),
    "mistral with images": ("config.json: text_config object", "language_model.lm_head.weight dropped"),
    "mixtral": ("model.layers.0.block_sparse_moe.experts.0.w1.weight dropped",),
    "qwen2, upper windows, tied": ("config.json: use_sliding_window null", "config.json: use_sliding_window removed"),
    "qwen2 with images": (
        "config.json: text_config removed",
        "config.json: text_config.rope_parameters removed",
        "config.json: text_config.rms_norm_eps removed",
        "model.language_model.norm.weight dropped",
    ),
    "qwen2_moe, some layers dense, renormalised": (
        "config.json: norm_topk_prob null",
        "config.json: mlp_only_layers zero",
        "config.json: mlp_only_layers removed",
        "config.json: use_sliding_window true",
        "model.layers.0.mlp.gate.weight dropped",
    ),
    "gemma3": (
        "config.json: vocab_size removed",
        "config.json: rope_parameters.sliding_attention.rope_theta removed",
        "model.layers.0.pre_feedforward_layernorm.weight dropped",
    ),
    "gemma3 as old files write it": (
        "config.json: rope_local_base_freq null",
        "config.json: sliding_window_pattern null",
        "config.json: sliding_window_pattern zero",
    ),
    "phi3": (
        "model.layers.0.self_attn.qkv_proj.weight dropped",
        "model.layers.0.mlp.gate_up_proj.weight dropped",
    ),
    "phi3, part of a head, window, tied": ("config.json: rope_parameters.partial_rotary_factor null",),
    "internlm2, biases": (
        "model.layers.0.attention.wqkv.weight dropped",
        "model.layers.0.attention.wqkv.bias dropped",
        "output.weight dropped",
    ),
    "starcoder2": ("model.layers.0.mlp.c_fc.bias dropped",),
    "exaone": ("config.json: num_layers removed", "transformer.wte.weight dropped"),
    "exaone4": ("model.layers.0.post_feedforward_layernorm.weight dropped",),
    "exaone4, no window": ("config.json: sliding_window removed",),
    "gpt_oss": ("config.json: rope_parameters null", "model.layers.0.self_attn.sinks dropped"),
    "gpt2": (
        "config.json: n_embd removed",
        "transformer.h.0.attn.c_attn.weight dropped",
        "transformer.wpe.weight dropped",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sweep(20)
def test_a_damaged_directory_is_told_or_harmless(name: str, tmp_path: Path) -> None:
    whole = undamaged(name, tmp_path)
    everything = list(mutations_of_the_model(whole.folder))
    again = [mutation for mutation in everything if mutation.label in ONCE_WRONG.get(name, ())]
    assert len(again) == len(ONCE_WRONG.get(name, ()))
    chosen = [*again, *random.Random(name).sample(everything, EACH)]
    faults = {mutation.label: fault(whole, mutation, tmp_path / "model") for mutation in chosen}
    assert {label: what for label, what in faults.items() if what is not None} == {}
