"""Keys and values of one sequence, and the ids they belong to.

One contiguous buffer a layer that grows by doubling; pages shared between conversations replace it later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.architecture import ModelSpec
from exlchat.engine.events import ModelError
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind

CACHE_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
_FIRST_CAPACITY = 512


class KVCache:
    """`ids[i]` is the token whose key and value stand at position `i` of every layer.

    Args:
        spec: sizes of the model.
        kind: `fp16` or `fp32`, how keys and values are stored.
        compute_dtype: how the transformer reads and writes them.
        max_seq_len: more tokens than this never fit.
    """

    def __init__(
        self, spec: ModelSpec, kind: str, compute_dtype: torch.dtype, device: torch.device, max_seq_len: int
    ) -> None:
        if kind not in CACHE_DTYPES:
            raise ModelError(f"kv_cache is {kind!r}; this version has {' and '.join(CACHE_DTYPES)}")
        self.ids: list[int] = []
        self.max_seq_len = max_seq_len
        self._kind = kind
        self._dtype = CACHE_DTYPES[kind]
        self._compute_dtype = compute_dtype
        self._shape = (spec.num_layers, spec.num_kv_heads, spec.head_dim)
        self._device = device
        self._keys, self._values = self._allocate(0), self._allocate(0)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Allocated now, on the device."""
        return self._keys.nbytes + self._values.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values in all layers, as they are stored."""
        layers, heads, head_dim = self._shape
        return 2 * layers * heads * head_dim * self._dtype.itemsize

    @property
    def kind(self) -> CacheKind:
        """How keys and values are stored."""
        return KINDS[self._kind]

    @property
    def capacity(self) -> int:
        """Tokens that fit without moving: whole pages."""
        return self._keys.shape[2]

    @property
    def page_table(self) -> Tensor:
        """int32 `[pages]`, where each page of the sequence lies: one behind the other here."""
        return torch.arange(self.capacity // PAGE_TOKENS, dtype=torch.int32, device=self._device)

    def pages(self, layer: int) -> LayerPages:
        """Keys and values of one layer as the decode step reads them; a view until the cache grows."""
        _, heads, head_dim = self._shape
        keys, values = (part[layer].view(heads, -1, PAGE_TOKENS, head_dim) for part in (self._keys, self._values))
        return LayerPages(self.kind, keys, values)

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
        capacity = self._keys.shape[2]
        if length <= capacity:
            return
        target = min(max(length, 2 * capacity, _FIRST_CAPACITY), max(self.max_seq_len, length))
        target = -(-target // PAGE_TOKENS) * PAGE_TOKENS
        try:
            keys, values = self._allocate(target), self._allocate(target)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            layers, heads, head_dim = self._shape
            needed = 2 * layers * heads * head_dim * target * self._dtype.itemsize
            raise ModelError(
                f"no memory for a cache of {target:,} tokens ({needed / 2**30:.2f} GiB); "
                "start a new conversation or load with a smaller --context"
            ) from error
        used = len(self.ids)
        keys[:, :, :used], values[:, :, :used] = self._keys[:, :, :used], self._values[:, :, :used]
        self._keys, self._values = keys, values

    def append(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new positions of one layer and returns all up to their end.

        Args:
            keys, values: `[kv_heads, tokens, head_dim]` of positions `start` and on.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in the compute dtype.
        """
        end = start + keys.shape[1]
        self._keys[layer, :, start:end] = keys
        self._values[layer, :, start:end] = values
        return (
            self._keys[layer, :, :end].to(self._compute_dtype),
            self._values[layer, :, :end].to(self._compute_dtype),
        )

    def _allocate(self, capacity: int) -> Tensor:
        layers, heads, head_dim = self._shape
        return torch.empty(layers, heads, capacity, head_dim, dtype=self._dtype, device=self._device)
