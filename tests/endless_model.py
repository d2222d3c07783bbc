"""A model whose answers have no end of their own, so that a test can stop them whenever it likes."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.random_models import SPECIAL_TOKENS, save_random_llama


def save_endless_llama(path: Path) -> Path:
    """Writes a random model that, asked greedily, never ends: its special tokens are never the likeliest."""
    model = save_random_llama(path, seed=5, max_position_embeddings=200_000)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL_TOKENS)] = 0.0
    model.save_pretrained(path)
    return path
