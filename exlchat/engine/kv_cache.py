"""Keys and values of one sequence, and the ids they belong to.

Every layer has whole pages of its own. They grow by doubling, or by what is needed where memory is short for that;
pages shared between conversations come later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.architecture import ModelSpec
from exlchat.engine.events import ModelError
from exlchat.engine.kv_layer import LayerStore, make_layer
from exlchat.engine.placement import free_memory
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind

_FIRST_CAPACITY = 512


class KVCache:
    """`ids[i]` is the token whose key and value stand at position `i` of every layer.

    Args:
        spec: sizes of the model.
        kind: a name of `KINDS`, how keys and values are stored.
        compute_dtype: how the transformer reads and writes them.
        max_seq_len: more tokens than this never fit.

    Raises:
        ModelError: there is no such kind, or it does not fit the model's heads.
    """

    def __init__(
        self, spec: ModelSpec, kind: str, compute_dtype: torch.dtype, device: torch.device, max_seq_len: int
    ) -> None:
        if kind not in KINDS:
            raise ModelError(f"kv_cache is {kind!r}; there are {', '.join(KINDS)}")
        if not KINDS[kind].fits(spec.head_dim):
            raise ModelError(
                f"kv_cache {kind} needs heads of a multiple of 32, and this model's have {spec.head_dim}; use fp16"
            )
        self.ids: list[int] = []
        self.max_seq_len = max_seq_len
        self._kind = KINDS[kind]
        self._compute_dtype = compute_dtype
        self._spec = spec
        self._device = device
        self.moves = 0
        """Grows whenever a layer's memory has moved."""
        self._layers = [self._make_layer(0) for _ in range(spec.num_layers)]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Allocated now, on the device."""
        return sum(part.nbytes for layer in self._layers for part in layer.parts)

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values in all layers, as they are stored."""
        return self._spec.num_layers * self._spec.num_kv_heads * self._kind.token_bytes(self._spec.head_dim)

    @property
    def kind(self) -> CacheKind:
        """How keys and values are stored."""
        return self._kind

    @property
    def capacity(self) -> int:
        """Tokens that fit without moving: whole pages."""
        return min(layer.capacity for layer in self._layers)

    @property
    def page_table(self) -> Tensor:
        """int32 `[pages]`, where each page of the sequence lies: one behind the other here."""
        return torch.arange(self.capacity // PAGE_TOKENS, dtype=torch.int32, device=self._device)

    def pages(self, layer: int) -> LayerPages:
        """Keys and values of one layer as the decode step reads them; a view until the cache grows."""
        return self._layers[layer].pages

    def reuse(self, prompt_ids: Sequence[int]) -> int:
        """Keeps the longest beginning that the prompt shares with the cache, drops the rest, returns its length.

        At least one prompt token is always left to compute, because its logits are wanted.
        """
        shared = 0
        for known, wanted in zip(self.ids, prompt_ids[:-1], strict=False):
            if known != wanted:
                break
            shared += 1
        del self.ids[shared:]
        return shared

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all. Raises `ModelError` when memory is short; the content stays."""
        before = self.capacity
        if length <= before:
            return
        doubled = min(max(length, 2 * before, _FIRST_CAPACITY), max(self.max_seq_len, length))
        for tokens in dict.fromkeys((doubled, length)):
            if self._try_to_resize(tokens):
                return
            # What some layers have got is what the others want.
            self._try_to_resize(before)
        layers = self._spec.num_layers
        needed = self.bytes_per_token * (length - before + length // layers) / 2**30
        free, smaller = free_memory(self._device) / 2**30, "" if self._kind.name == "q4" else " or --kv-cache q4"
        raise ModelError(
            f"a cache of {length:,} tokens needs {needed:.2f} GiB more than the present one, and {free:.2f} GiB are "
            f"free; start a new conversation, or load with a smaller --context{smaller}"
        )

    def append(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new positions of one layer and returns all up to their end.

        Args:
            keys, values: `[kv_heads, tokens, head_dim]` of positions `start` and on.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in the compute dtype. The new positions come back as they were
            given: only later calls see them as they are stored.
        """
        return self._layers[layer].append(start, keys, values, self._compute_dtype)

    def _try_to_resize(self, tokens: int) -> bool:
        """Gives every layer whole pages for so many tokens, one layer after the other: no more memory than that of one
        layer is taken twice. False when memory is short; some layers have them then.
        """
        capacity = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
        for index, layer in enumerate(self._layers):
            if layer.capacity == capacity:
                continue
            try:
                resized = self._make_layer(capacity)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError):
                return False
            resized.take(layer, len(self.ids))
            self._layers[index] = resized
            self.moves += 1
        return True

    def _make_layer(self, capacity: int) -> LayerStore:
        return make_layer(self._kind, self._spec.num_kv_heads, capacity, self._spec.head_dim, self._device)
