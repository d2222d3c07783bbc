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

from tests.engine.family_models import (
    CASES,
    Case,
    as_exaone,
    as_internlm2,
    as_minicpm,
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


def from_images(config: Config) -> Config:
    text = {**config, **config["text_config"]}
    del text["architectures"], text["text_config"]
    return text


BACK: dict[Any, Callable[[Config], Config]] = {
    as_internlm2: from_internlm2,
    as_exaone: from_exaone,
    as_minicpm: from_minicpm,
    as_orion: from_orion,
    as_yi: from_yi,
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


EACH = 12


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_directory_is_told_or_harmless(name: str, tmp_path: Path) -> None:
    whole = undamaged(name, tmp_path)
    chosen = random.Random(name).sample(list(mutations_of_the_model(whole.folder)), EACH)
    faults = {mutation.label: fault(whole, mutation, tmp_path / "model") for mutation in chosen}
    assert {label: what for label, what in faults.items() if what is not None} == {}
