"""Keys and values of a prompt's chunk into the pages of a layer, and those of the whole sequence out of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, Element, decode, encode


@dataclass(frozen=True, slots=True)
class PageList:
    """The pages of a sequence, in order.

    Args:
        slots: where they are.
        table: the same on the device, int32, perhaps with room behind.
    """

    slots: Sequence[int]
    table: Tensor

    def are_neighbours(self, tokens: int) -> bool:
        """Whether the pages of so many tokens lie one behind the other."""
        count = -(-tokens // PAGE_TOKENS)
        first = self.slots[0] if count else 0
        return list(self.slots[:count]) == list(range(first, first + count))


class PageRows(Protocol):
    """One way to do it."""

    def append(
        self, pages: LayerPages, sequence: PageList, start: int, *, keys: Tensor, values: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Stores new positions of one layer and returns all up to their end.

        Args:
            pages: of the layer, of all sequences.
            sequence: enough pages.
            start: how many tokens stand before the new ones.
            keys, values: `[kv_heads, tokens, head_dim]`.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in `dtype`; new positions as they were given where pages are in
            few bits.
        """


class TorchPageRows:
    """In plain torch, on any device."""

    def append(
        self, pages: LayerPages, sequence: PageList, start: int, *, keys: Tensor, values: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """See `PageRows`."""
        kind = pages.kind
        return (
            _append((pages.keys, pages.key_scales), kind.key, sequence, start, keys.to(dtype)),
            _append((pages.values, pages.value_scales), kind.value, sequence, start, values.to(dtype)),
        )


class PageKernels(Protocol):
    """What `KernelPageRows` needs of the CUDA extension: see `exlchat.ext.pages.PageKernels`."""

    def read_pages(
        self, pages: LayerPages, page_table: Tensor, first: int, tokens: int, *, keys_out: Tensor, values_out: Tensor
    ) -> None:
        """See `exlchat.ext.pages`."""

    def write_pages(self, pages: LayerPages, page_table: Tensor, start: int, keys: Tensor, values: Tensor) -> None:
        """See `exlchat.ext.pages`."""


class KernelPageRows:
    """Through the CUDA extension: float16, of any kind but `fp32`, each byte read and written once."""

    def __init__(self, kernels: PageKernels) -> None:
        self._kernels = kernels

    def append(
        self, pages: LayerPages, sequence: PageList, start: int, *, keys: Tensor, values: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """See `PageRows`."""
        end, table = start + keys.shape[1], sequence.table
        self._kernels.write_pages(pages, table, start, keys, values)
        if not pages.kind.quantized and sequence.are_neighbours(end):
            return _rows(pages.keys, sequence, end), _rows(pages.values, sequence, end)
        shape = (keys.shape[0], end, keys.shape[2])
        all_keys, all_values = (torch.empty(shape, dtype=dtype, device=keys.device) for _ in range(2))
        self._kernels.read_pages(pages, table, 0, start, keys_out=all_keys, values_out=all_values)
        all_keys[:, start:], all_values[:, start:] = keys, values
        return all_keys, all_values


def _append(
    parts: tuple[Tensor, Tensor | None], element: Element, sequence: PageList, start: int, new: Tensor
) -> Tensor:
    """What new tokens see: the older ones as they are stored; themselves and each other too, unless in few bits."""
    end = start + new.shape[1]
    for part, rows in zip(parts, encode(new, element), strict=True):
        if part is not None and rows is not None:
            _write(part, sequence, start, rows)
    seen = start if element.turned else end
    stored, scales = (None if part is None else _rows(part, sequence, seen) for part in parts)
    assert stored is not None
    if not element.turned:
        return stored.to(new.dtype)
    return torch.cat((decode(stored, scales, element).to(new.dtype), new), dim=1)


def _rows(part: Tensor, sequence: PageList, end: int) -> Tensor:
    """The first rows of a sequence, `[kv_heads, end, row]`: a view where its pages are neighbours."""
    count = -(-end // PAGE_TOKENS)
    if sequence.are_neighbours(end):
        first = sequence.slots[0] if count else 0
        chosen = part[:, first : first + count]
    else:
        chosen = part[:, sequence.table[:count].long()]
    return chosen.flatten(1, 2)[:, :end]


def _write(part: Tensor, sequence: PageList, start: int, rows: Tensor) -> None:
    at = 0
    while at < rows.shape[1]:
        index, row = divmod(start + at, PAGE_TOKENS)
        count = min(PAGE_TOKENS - row, rows.shape[1] - at)
        part[:, sequence.slots[index], row : row + count] = rows[:, at : at + count]
        at += count
