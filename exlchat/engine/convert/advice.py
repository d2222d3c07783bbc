"""Which bits and which cache a card holds, before anything is made."""

from __future__ import annotations

from pathlib import Path

from exlchat.engine.kv.sizes import cache_bytes, cache_kind, pages_of, window_slots
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.placement import WORKING_ON_GPU
from exlchat.engine.weights.checkpoint import Checkpoint


def bytes_beside(source: Path, context: int, kv_cache: str = "fp16") -> int:
    """What a card needs beside the weights: the cache of one conversation of so many tokens, and room to work in."""
    checkpoint = Checkpoint(source)
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    pages = pages_of(context)
    return cache_bytes(spec, cache_kind(spec, kv_cache), pages, window_slots(spec, pages, pages)) + WORKING_ON_GPU
