"""Keys and values of one layer as they are stored: plain or in few bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import GROUP, PAGE_TOKENS, CacheKind, decode, encode

_DTYPES = {16: torch.float16, 32: torch.float32}


@dataclass(frozen=True, slots=True)
class LayerStore:
    """Room for `capacity` tokens, whole pages of 256, the pages of a head one behind the other.

    Args:
        kind: how they are stored.
        keys, values: `[kv_heads, capacity, head_dim]`, or codes as `kv_formats.encode` makes them.
        scales: of the keys and of the values, float16 `[kv_heads, capacity, head_dim / 32]`; none of plain ones.
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
        if self.scales is None:
            self.keys[:, start:end], self.values[:, start:end] = keys, values
            return self.keys[:, :end].to(dtype), self.values[:, :end].to(dtype)
        all_keys = self._append_codes(self.keys, self.scales[0], self.kind.key_bits, start, keys.to(dtype))
        return all_keys, self._append_codes(self.values, self.scales[1], self.kind.value_bits, start, values.to(dtype))

    @staticmethod
    def _append_codes(codes: Tensor, scales: Tensor, bits: int, start: int, new: Tensor) -> Tensor:
        """What new tokens see: the older ones rounded, themselves and each other as they are."""
        end = start + new.shape[1]
        old = decode(codes[:, :start], scales[:, :start], bits).to(new.dtype)
        codes[:, start:end], scales[:, start:end] = encode(new, bits)
        return torch.cat((old, new), dim=1)


def make_layer(kind: CacheKind, kv_heads: int, capacity: int, head_dim: int, device: torch.device) -> LayerStore:
    """An empty store. What it holds before tokens are stored is undefined."""
    if not kind.quantized:
        keys, values = (
            torch.empty(kv_heads, capacity, head_dim, dtype=_DTYPES[kind.key_bits], device=device) for _ in range(2)
        )
        return LayerStore(kind, keys, values, None)
    keys, values = (
        torch.empty(kv_heads, capacity, head_dim * bits // 8, dtype=torch.uint8, device=device)
        for bits in (kind.key_bits, kind.value_bits)
    )
    key_scales, value_scales = (
        torch.empty(kv_heads, capacity, head_dim // GROUP, dtype=torch.float16, device=device) for _ in range(2)
    )
    return LayerStore(kind, keys, values, (key_scales, value_scales))
