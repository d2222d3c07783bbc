"""Three ways through a decoder that must give the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint


def open_transformer(
    path: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    context: int | None = None,
    counts: Sequence[int] = (),
) -> Transformer:
    """`counts`: layers of each of several logical cards."""
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    has_head = any(name.startswith("lm_head.") for name in checkpoint.names)
    loader = LayerLoader(checkpoint, torch.device(device), dtype)
    split = LayerSplit((loader.device,) * len(counts), tuple(accumulate(counts))) if counts else None
    return load_transformer(spec, loader, has_head, lambda: None, context=context, split=split)


def logits_in_steps(
    transformer: Transformer, ids: Sequence[int], steps: Sequence[int], kv_cache: str = "fp32"
) -> torch.Tensor:
    """float32 `[len(ids), vocab]`, computed `steps[0]` tokens first, then `steps[1]`, and so on."""
    assert sum(steps) == len(ids)
    cache = KVSequence(
        KVCache(transformer.spec, kv_cache, transformer.dtype, transformer.device, len(ids), split=transformer.split)
    )
    parts = []
    for step in steps:
        start = len(cache)
        cache.reserve(start + step)
        chunk = torch.tensor(ids[start : start + step], device=transformer.device)
        parts.append(transformer.forward(chunk, cache, start=start, last_only=False))
        cache.extend(ids[start : start + step])
    return torch.cat(parts).cpu()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
