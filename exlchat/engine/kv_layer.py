"""Keys and values of one layer as they are stored: plain or in few bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, CacheKind, Element, decode, encode


@dataclass(frozen=True, slots=True)
class LayerStore:
    """Room for `capacity` tokens, whole pages of 256, the pages of a head one behind the other.

    Args:
        kind: how they are stored.
        keys, values: `[kv_heads, capacity, row]`, rows as `kv_formats.encode` makes them.
        scales: of the keys and of the values, float16 `[kv_heads, capacity, head_dim / 32]`, where the kind has any.
    """

    kind: CacheKind
    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, Tensor] | None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All its tensors; dimension 1 is the token."""
        return (self.keys, self.values, *(self.scales or ()))

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.shape[1]

    @property
    def pages(self) -> LayerPages:
        """The same memory as the decode step's attention reads it."""
        keys, values, *scales = (
            part.view(part.shape[0], part.shape[1] // PAGE_TOKENS, PAGE_TOKENS, part.shape[2]) for part in self.parts
        )
        return LayerPages(self.kind, keys, values, *scales)

    def take(self, other: LayerStore, tokens: int) -> None:
        """Copies the first tokens of another store of the same kind."""
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine[:, :tokens] = theirs[:, :tokens]

    def append(self, start: int, keys: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Stores new positions from `start` on and returns all up to their end, as `KVCache.append` says."""
        end = start + keys.shape[1]
        if not self.kind.quantized:
            self.keys[:, start:end], self.values[:, start:end] = keys, values
            return self.keys[:, :end].to(dtype), self.values[:, :end].to(dtype)
        key_scales, value_scales = self.scales or (None, None)
        all_keys = self._append_codes(self.keys, key_scales, self.kind.key, start, keys.to(dtype))
        return all_keys, self._append_codes(self.values, value_scales, self.kind.value, start, values.to(dtype))

    @staticmethod
    def _append_codes(codes: Tensor, scales: Tensor | None, element: Element, start: int, new: Tensor) -> Tensor:
        """What new tokens see: the older ones rounded, themselves and each other as they are."""
        end = start + new.shape[1]
        old = decode(codes[:, :start], None if scales is None else scales[:, :start], element).to(new.dtype)
        codes[:, start:end], new_scales = encode(new, element)
        if scales is not None and new_scales is not None:
            scales[:, start:end] = new_scales
        return torch.cat((old, new), dim=1)


def make_layer(kind: CacheKind, kv_heads: int, capacity: int, head_dim: int, device: torch.device) -> LayerStore:
    """An empty store. What it holds before tokens are stored is undefined."""
    elements = (kind.key, kind.value)
    keys, values = (
        torch.empty(kv_heads, capacity, element.row(head_dim), dtype=element.dtype, device=device)
        for element in elements
    )
    if not kind.has_scales:
        return LayerStore(kind, keys, values, None)
    key_scales, value_scales = (
        torch.empty(kv_heads, capacity, element.scales(head_dim), dtype=torch.float16, device=device)
        for element in elements
    )
    return LayerStore(kind, keys, values, (key_scales, value_scales))
