"""Keys and values of a prompt's chunk into the pages of a layer, and those of the whole sequence out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, Element, decode, encode
from exlchat.ext.pages import PageAccess, PageKernels


@dataclass(frozen=True, slots=True)
class PageList:
    """The pages of a sequence, in order.

    Args:
        slots: where they are.
        neighbours: how many of the first lie one behind the other.
    """

    slots: tuple[int, ...] = ()
    neighbours: int = 0

    @classmethod
    def of(cls, slots: Sequence[int]) -> PageList:
        """Of pages in these places."""
        apart = (index for index, slot in enumerate(slots) if slot != slots[0] + index)
        return cls(tuple(slots), next(apart, len(slots)))


class LayerRows(Protocol):
    """The pages of one layer."""

    def append(self, sequence: PageList, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new positions and returns all up to their end.

        Args:
            sequence: enough pages.
            start: how many tokens stand before the new ones.
            keys, values: `[kv_heads, tokens, head_dim]`.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in the compute dtype; new positions as they were given where
            pages are in few bits.
        """


OpenRows = Callable[[LayerPages, Tensor, torch.dtype], LayerRows]
"""Gives the rows of a layer's pages, the page table of the sequence (int32, on the device) and the compute dtype."""


class TorchLayerRows:
    """In plain torch, on any device: an `OpenRows`."""

    def __init__(self, pages: LayerPages, page_table: Tensor, dtype: torch.dtype) -> None:
        self._pages, self._table, self._dtype = pages, page_table, dtype

    def append(self, sequence: PageList, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerRows`."""
        pages = self._pages
        return (
            self._append((pages.keys, pages.key_scales), pages.kind.key, sequence, start, keys.to(self._dtype)),
            self._append((pages.values, pages.value_scales), pages.kind.value, sequence, start, values.to(self._dtype)),
        )

    def _append(
        self, parts: tuple[Tensor, Tensor | None], element: Element, sequence: PageList, start: int, new: Tensor
    ) -> Tensor:
        """What new tokens see: the older ones as stored; themselves and each other too, unless in few bits."""
        end = start + new.shape[1]
        for part, rows in zip(parts, encode(new, element), strict=True):
            if part is not None and rows is not None:
                _write(part, sequence, start, rows)
        seen = start if element.turned else end
        stored, scales = (None if part is None else _rows(part, sequence, self._table, seen) for part in parts)
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

    def append(self, sequence: PageList, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerRows`."""
        end, pages = start + keys.shape[1], self._pages
        self._access.write(start, keys, values)
        if not pages.kind.quantized and end <= sequence.neighbours * PAGE_TOKENS:
            return _rows(pages.keys, sequence, self._table, end), _rows(pages.values, sequence, self._table, end)
        both = torch.empty(2, keys.shape[0], end, keys.shape[2], dtype=torch.float16, device=keys.device)
        self._access.read(0, start, keys_out=both[0], values_out=both[1])
        both[0, :, start:], both[1, :, start:] = keys, values
        return both[0], both[1]


def kernel_rows(kernels: PageKernels) -> OpenRows:
    """Rows through the kernels of one library."""

    def open_rows(pages: LayerPages, page_table: Tensor, _dtype: torch.dtype) -> LayerRows:
        return KernelLayerRows(kernels.page_access(pages, page_table), pages, page_table)

    return open_rows


def _rows(part: Tensor, sequence: PageList, table: Tensor, end: int) -> Tensor:
    """The first rows of a sequence, `[kv_heads, end, row]`: a view where its pages are neighbours."""
    count = -(-end // PAGE_TOKENS)
    if count <= sequence.neighbours:
        first = sequence.slots[0] if count else 0
        chosen = part[:, first : first + count]
    else:
        chosen = part[:, table[:count].long()]
    return chosen.flatten(1, 2)[:, :end]


def _write(part: Tensor, sequence: PageList, start: int, rows: Tensor) -> None:
    at = 0
    while at < rows.shape[1]:
        index, row = divmod(start + at, PAGE_TOKENS)
        count = min(PAGE_TOKENS - row, rows.shape[1] - at)
        part[:, sequence.slots[index], row : row + count] = rows[:, at : at + count]
        at += count
