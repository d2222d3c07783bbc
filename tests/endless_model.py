"""A model whose answers have no end of their own, so that a test can stop them whenever it likes."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.random_models import SPECIAL_TOKENS, edit_json, save_random_llama


def save_endless_llama(path: Path) -> Path:
    """Writes a random model that, asked greedily, never ends: its special tokens are never the likeliest."""
    model = save_random_llama(path, seed=5, max_position_embeddings=200_000)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL_TOKENS)] = 0.0
    model.save_pretrained(path)
    return path


def save_llama_without_end(path: Path) -> Path:
    """Writes a random model that has no token for an end, however it is drawn."""
    save_random_llama(path)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path
