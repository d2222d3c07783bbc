"""Attention of short prompts that their graphs hold: over pages of halves, on one card."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.engine.decode.parts import attention_rules
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.attention import HEAD_DIMS
from exlchat.ext.prompt_attention import OLDEST, PromptAttention, PromptScratch


def chunk_attention(transformer: Transformer, cache: KVCache, kernels: PromptAttention) -> ChunkAttention | None:
    """Of one model; `None` where the attention of its prompts stays outside of their graphs."""
    if transformer.device.type != "cuda" or len(transformer.split.devices) > 1:
        return None
    if cache.kind.quantized or transformer.spec.head_dim not in HEAD_DIMS:
        return None
    card = torch.cuda.get_device_properties(transformer.device)
    if (card.major, card.minor) < OLDEST:
        return None
    return ChunkAttention(transformer, cache, kernels, processors=card.multi_processor_count)


class ChunkAttention:
    """Of one model: see `chunk_attention`.

    Args:
        processors: of the card.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, kernels: PromptAttention, *, processors: int) -> None:
        self._transformer, self._cache, self._kernels, self._processors = transformer, cache, kernels, processors
        self._tables = cache.tables.alike(1)
        self._place = torch.zeros(2, dtype=torch.int32, device=transformer.device)
        self._scratch: dict[int, PromptScratch] = {}
        """By rows: graphs point to it."""

    def show(self, sequence: KVSequence, start: int, tokens: int) -> None:
        """What the next pass is about. Enqueued."""
        self._tables.show(self._cache.tables, [sequence.row])
        self._place[0].fill_(start)
        self._place[1].fill_(tokens)

    def attend(self, index: int, rows: Tensor, mixed: Tensor) -> None:
        """As `Transformer.attend` of what `show` said; of `mixed`, the rows of new tokens are written."""
        spec, size = self._transformer.spec, len(rows)
        if size not in self._scratch:
            sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, size)
            self._scratch[size] = PromptScratch(*sizes, self._transformer.device, processors=self._processors)
        self._kernels.prompt_attention(
            rows.contiguous(),
            mixed.flatten(1),
            pages=self._cache.layer(index),
            page_table=self._tables.of(spec.windows[index] > 0)[0],
            place=self._place,
            rules=attention_rules(spec, index, self._transformer.layers[index]),
            scratch=self._scratch[size],
        ).launch(dependent=True)
