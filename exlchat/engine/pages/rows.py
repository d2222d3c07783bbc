"""Keys and values of a prompt's chunk into the pages of a layer, and those of the whole sequence out of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, Element, decode, encode
from exlchat.ext.pages import PageAccess, PageKernels


@dataclass(frozen=True, slots=True)
class PageList:
    """Where the pages of a sequence are, in order. What stands for a page without memory is never used."""

    slots: tuple[int, ...] = ()

    def neighbours(self, first: int, end: int) -> slice | None:
        """Where the pages of these tokens are, if they lie one behind the other."""
        wanted = self.slots[first // PAGE_TOKENS : -(-end // PAGE_TOKENS)]
        begin = wanted[0] if wanted else 0
        return slice(begin, begin + len(wanted)) if wanted == tuple(range(begin, begin + len(wanted))) else None


@dataclass(frozen=True, slots=True)
class Span:
    """The positions that a chunk is about: from `first` on they are wanted, from `start` on they are new."""

    first: int
    start: int


class LayerRows(Protocol):
    """The pages of one layer."""

    def append(self, sequence: PageList, span: Span, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new positions and returns all that are wanted, up to their end.

        Args:
            sequence: enough pages.
            keys, values: `[kv_heads, tokens, head_dim]` of the new ones.

        Returns:
            `[kv_heads, span.start + tokens - span.first, head_dim]` each, in the compute dtype; new positions as they
            were given where pages are in few bits.
        """


OpenRows = Callable[[LayerPages, Tensor, torch.dtype], LayerRows]
"""Gives the rows of a layer's pages, the page table of the sequence (int32, on the device) and the compute dtype."""


class TorchLayerRows:
    """In plain torch, on any device: an `OpenRows`."""

    def __init__(self, pages: LayerPages, page_table: Tensor, dtype: torch.dtype) -> None:
        self._keys, self._values = (pages.keys, pages.key_scales), (pages.values, pages.value_scales)
        self._kind, self._table, self._dtype = pages.kind, page_table, dtype

    def append(self, sequence: PageList, span: Span, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerRows`."""
        return (
            self._append(self._keys, self._kind.key, sequence, span, keys.to(self._dtype)),
            self._append(self._values, self._kind.value, sequence, span, values.to(self._dtype)),
        )

    def _append(
        self, parts: tuple[Tensor, Tensor | None], element: Element, sequence: PageList, span: Span, new: Tensor
    ) -> Tensor:
        """What new tokens see: the older ones as stored; themselves and each other too, unless in few bits."""
        for part, rows in zip(parts, encode(new, element), strict=True):
            if part is not None and rows is not None:
                _write(part, sequence, span.start, rows)
        end = span.start if element.turned else span.start + new.shape[1]
        stored, scales = (
            None if part is None else _rows(part, sequence, self._table, span.first, end) for part in parts
        )
        assert stored is not None
        if not element.turned:
            return stored.to(new.dtype)
        return torch.cat((decode(stored, scales, element).to(new.dtype), new), dim=1)


class KernelLayerRows:
    """Through the CUDA extension: float16, of any kind but `fp32`, each byte read and written once.

    Args:
        access: of the layer.
        pages, page_table: what it accesses.
    """

    def __init__(self, access: PageAccess, pages: LayerPages, page_table: Tensor) -> None:
        self._access, self._pages, self._table = access, pages, page_table

    def append(self, sequence: PageList, span: Span, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerRows`."""
        first, old, pages = span.first, span.start - span.first, self._pages
        end = span.start + keys.shape[1]
        self._access.write(span.start, keys, values)
        if not pages.kind.quantized and sequence.neighbours(first, end) is not None:
            return (
                _rows(pages.keys, sequence, self._table, first, end),
                _rows(pages.values, sequence, self._table, first, end),
            )
        shape = (2, keys.shape[0], end - first, keys.shape[2])
        both = torch.empty(shape, dtype=torch.float16, device=keys.device)
        self._access.read(first, old, keys_out=both[0], values_out=both[1])
        both[0, :, old:], both[1, :, old:] = keys, values
        return both[0], both[1]


def kernel_rows(kernels: PageKernels) -> OpenRows:
    """Rows through the kernels of one library."""

    def open_rows(pages: LayerPages, page_table: Tensor, _dtype: torch.dtype) -> LayerRows:
        return KernelLayerRows(kernels.page_access(pages, page_table), pages, page_table)

    return open_rows


def _rows(part: Tensor, sequence: PageList, table: Tensor, first: int, end: int) -> Tensor:
    """Rows of a sequence, `[kv_heads, end - first, row]`: a view where its pages are neighbours."""
    begin = first // PAGE_TOKENS
    neighbours = sequence.neighbours(first, end)
    chosen = part[:, table[begin : -(-end // PAGE_TOKENS)].long() if neighbours is None else neighbours]
    return chosen.flatten(1, 2)[:, first - begin * PAGE_TOKENS : end - begin * PAGE_TOKENS]


def _write(part: Tensor, sequence: PageList, start: int, rows: Tensor) -> None:
    at = 0
    while at < rows.shape[1]:
        index, row = divmod(start + at, PAGE_TOKENS)
        count = min(PAGE_TOKENS - row, rows.shape[1] - at)
        part[:, sequence.slots[index], row : row + count] = rows[:, at : at + count]
        at += count
