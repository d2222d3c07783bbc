"""Keys and values of a prompt's chunk into the pages of a layer, and those of the whole sequence out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, decode, encode


class PageRows(Protocol):
    """One way to do it."""

    def append(
        self,
        pages: LayerPages,
        slots: Sequence[int],
        start: int,
        *,
        keys: Tensor,
        values: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Stores new positions of one layer and returns all up to their end.

        Args:
            pages: of the layer, of all sequences.
            slots: of the sequence's pages, enough of them.
            start: how many tokens stand before the new ones.
            keys, values: `[kv_heads, tokens, head_dim]`.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in `dtype`; new positions as they were given where pages are in
            few bits.
        """


class TorchPageRows:
    """In plain torch, on any device."""

    def append(
        self,
        pages: LayerPages,
        slots: Sequence[int],
        start: int,
        *,
        keys: Tensor,
        values: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """See `PageRows`."""
        end = start + keys.shape[1]
        slots = slots[: -(-end // PAGE_TOKENS)]
        if pages.key_scales is None or pages.value_scales is None:
            _write(pages.keys, slots, start, keys)
            _write(pages.values, slots, start, values)
            return _read(pages.keys, slots, end).to(dtype), _read(pages.values, slots, end).to(dtype)
        kind = pages.kind
        return (
            _append_codes((pages.keys, pages.key_scales), kind.key_bits, slots, start, keys.to(dtype)),
            _append_codes((pages.values, pages.value_scales), kind.value_bits, slots, start, values.to(dtype)),
        )


def _append_codes(parts: tuple[Tensor, Tensor], bits: int, slots: Sequence[int], start: int, new: Tensor) -> Tensor:
    """What new tokens see: the older ones rounded, themselves and each other as they are."""
    codes, scales = (_read(part, slots, start) for part in parts)
    old = decode(codes, scales, bits).to(new.dtype)
    for part, rows in zip(parts, encode(new, bits), strict=True):
        _write(part, slots, start, rows)
    return torch.cat((old, new), dim=1)


def _read(part: Tensor, slots: Sequence[int], end: int) -> Tensor:
    """The first rows of a sequence, `[kv_heads, end, row]`: a view where its pages are neighbours."""
    count = -(-end // PAGE_TOKENS)
    first = slots[0] if count else 0
    if list(slots[:count]) == list(range(first, first + count)):
        chosen = part[:, first : first + count]
    else:
        chosen = part[:, torch.tensor(slots[:count], device=part.device)]
    return chosen.flatten(1, 2)[:, :end]


def _write(part: Tensor, slots: Sequence[int], start: int, rows: Tensor) -> None:
    at = 0
    while at < rows.shape[1]:
        index, row = divmod(start + at, PAGE_TOKENS)
        count = min(PAGE_TOKENS - row, rows.shape[1] - at)
        part[:, slots[index], row : row + count] = rows[:, at : at + count]
        at += count
