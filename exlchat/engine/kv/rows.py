"""Keys and values of a prompt's chunk into the pages of a layer, and those of the whole sequence out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
class ChunkSpan:
    """The positions that a chunk is about.

    Args:
        first: the first that its tokens see.
        start: the first new one.
        exact_from: from here to `start` the positions of the page are known as they were before they were stored.
    """

    first: int
    start: int
    exact_from: int


@dataclass(frozen=True, slots=True)
class SeenRows:
    """What some tokens of a chunk see.

    Args:
        tokens: which of the chunk.
        keys, values: `[kv_heads, seen, head_dim]` up to the last of these tokens, in the compute dtype; valid until the
            next ones are asked for.
    """

    tokens: slice
    keys: Tensor
    values: Tensor


class LayerRows(Protocol):
    def append(self, sequence: PageList, span: ChunkSpan, new: Tensor) -> Iterator[SeenRows]:
        """Stores new positions, when the first of what they see is asked for.

        A token sees the positions of its own page as they were before they were stored, where that is known, and older
        ones as they are stored. So where a prompt is cut into chunks makes no difference.

        Args:
            sequence: enough pages.
            new: `[2, kv_heads, tokens, head_dim]`, keys and values.
        """


OpenRows = Callable[[LayerPages, Tensor, torch.dtype], LayerRows]
"""Gives the rows of a layer's pages, the page table of the sequence (int32, on the device) and the compute dtype."""


class TorchLayerRows:
    """In plain torch, on any device: an `OpenRows`."""

    def __init__(self, pages: LayerPages, page_table: Tensor, dtype: torch.dtype) -> None:
        self._parts = ((pages.keys, pages.key_scales), (pages.values, pages.value_scales))
        self._elements = (pages.kind.key, pages.kind.value)
        self._quantized, self._table, self._dtype = pages.kind.quantized, page_table, dtype
        self._page = _ExactPage(pages, dtype)

    def append(self, sequence: PageList, span: ChunkSpan, new: Tensor) -> Iterator[SeenRows]:
        new = new.to(self._dtype)
        stored = [
            self._append(parts, element, sequence, span, one)
            for parts, element, one in zip(self._parts, self._elements, new, strict=True)
        ]
        if not self._quantized:
            yield SeenRows(slice(0, new.shape[2]), *stored)
            return
        yield from self._page.exact(torch.stack(stored), span, new)

    def _append(
        self, parts: tuple[Tensor, Tensor | None], element: Element, sequence: PageList, span: ChunkSpan, new: Tensor
    ) -> Tensor:
        for part, rows in zip(parts, encode(new, element), strict=True):
            if part is not None and rows is not None:
                _write(part, sequence, span.start, rows)
        end = span.start + new.shape[1]
        stored, scales = (
            None if part is None else _rows(part, sequence, self._table, span.first, end) for part in parts
        )
        assert stored is not None
        return decode(stored, scales, element).to(new.dtype)


class KernelLayerRows:
    """Through the CUDA extension: float16, of any kind but `fp32`, each byte read and written once.

    Args:
        access: of the layer.
        pages, page_table: what it accesses.
    """

    def __init__(self, access: PageAccess, pages: LayerPages, page_table: Tensor) -> None:
        self._access, self._pages, self._table = access, pages, page_table
        self._page = _ExactPage(pages, torch.float16)

    def append(self, sequence: PageList, span: ChunkSpan, new: Tensor) -> Iterator[SeenRows]:
        first, end, pages = span.first, span.start + new.shape[2], self._pages
        self._access.write(span.start, new[0], new[1])
        whole = slice(0, new.shape[2])
        if not pages.kind.quantized and sequence.neighbours(first, end) is not None:
            keys, values = (_rows(part, sequence, self._table, first, end) for part in (pages.keys, pages.values))
            yield SeenRows(whole, keys, values)
            return
        both = torch.empty(2, new.shape[1], end - first, new.shape[3], dtype=torch.float16, device=new.device)
        self._access.read(first, end - first, keys_out=both[0], values_out=both[1])
        if not pages.kind.quantized:
            yield SeenRows(whole, both[0], both[1])
            return
        yield from self._page.exact(both, span, new)


class _ExactPage:
    """The running sequence's last page in one layer as it was before it was stored. Plain pages need none."""

    def __init__(self, pages: LayerPages, dtype: torch.dtype) -> None:
        shape = (2, pages.keys.shape[0], PAGE_TOKENS if pages.kind.quantized else 0, pages.head_dim)
        self._rows = torch.empty(shape, dtype=dtype, device=pages.keys.device)

    def exact(self, both: Tensor, span: ChunkSpan, new: Tensor) -> Iterator[SeenRows]:
        """What new tokens see, page by page.

        Args:
            both: `[2, kv_heads, seen, head_dim]`, all from `span.first` on as stored; used to put rows into.
            new: as for `LayerRows.append`.
        """
        end, begin, known = span.start + new.shape[2], span.start, span.exact_from
        while begin < end:
            page = begin // PAGE_TOKENS * PAGE_TOKENS
            until, known = min(page + PAGE_TOKENS, end), max(known, page, span.first)
            self._rows[:, :, begin - page : until - page] = new[:, :, begin - span.start : until - span.start]
            place = both[:, :, known - span.first : until - span.first]
            stored = place.clone() if until < end else None
            place.copy_(self._rows[:, :, known - page : until - page])
            tokens = slice(begin - span.start, until - span.start)
            yield SeenRows(tokens, both[0, :, : until - span.first], both[1, :, : until - span.first])
            if stored is not None:
                place.copy_(stored)
            begin = until


def kernel_rows(kernels: PageKernels) -> OpenRows:
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
