"""The plan of each card of a model, whichever way it lies on them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from exlchat.engine.decode.parts import Together
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.transformer import ParallelTransformer
from exlchat.ext.attention import best_splits
from exlchat.ext.exchange import MAX_SENT
from exlchat.ext.ops import Kernels
from exlchat.ext.products import MAX_ROWS

Splits = Callable[[ModelSpec, torch.device], int]
"""Blocks over which the attention of a head is spread on a card."""


def plans_of(
    transformer: Transformer, cache: KVCache, kernels: Kernels, splits: Splits, *, rows: int = MAX_ROWS
) -> list[DecodePlan]:
    """Of each card, in order; arguments as of `DecodePlan`."""
    if isinstance(transformer, ParallelTransformer):
        return _plans_together(transformer, cache, kernels, splits, rows)
    split = transformer.split
    each = splits(transformer.spec, split.first)
    # The last card sends to all others.
    direct = 1 < len(split.devices) <= MAX_SENT and not split.staged and kernels.reach(split.devices)
    plans = [DecodePlan(transformer, cache, kernels, splits=each, rows=rows, direct=direct)]
    while (behind := plans[0]).card:
        before = DecodePlan(transformer, cache, kernels, splits=each, rows=rows, behind=behind, direct=direct)
        plans.insert(0, before)
    return plans


def _plans_together(
    transformer: ParallelTransformer, cache: KVCache, kernels: Kernels, splits: Splits, rows: int
) -> list[DecodePlan]:
    tables, ends = cache.tables.alike(rows), tuple(accumulate(rank.outputs for rank in transformer.ranks))
    plans = []
    for rank, device, sums in zip(transformer.ranks, transformer.split.devices, transformer.sums, strict=True):
        # Heads are fewer on each card, and so are spread over more blocks.
        own, together = splits(rank.spec, device), Together(sums.peers, tables, ends)
        plans.append(DecodePlan(rank, cache, kernels, splits=own, rows=rows, together=together))
    return plans


def splits_of(spec: ModelSpec, device: torch.device) -> int:
    """Blocks over which a step spreads the attention of a head: all steps of a model the same, as sums depend on it."""
    return best_splits(
        spec.num_heads, spec.num_kv_heads, torch.cuda.get_device_properties(device).multi_processor_count
    )
