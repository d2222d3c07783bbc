"""The memory of all pages of a model: of the layers that see everything, and of those that see a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exlchat.engine.kv.pool import Page
from exlchat.engine.kv.rows import LayerRows, OpenRows, PageList, Seen, Span
from exlchat.engine.kv.tensors import PageStore, make_store
from exlchat.engine.kv.windows import WindowSlots
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import free_memory
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, CacheKind
from exlchat.llm.info import ModelError


class PageMemory:
    """Taken when it is made.

    Args:
        spec: of the model.
        kind: how keys and values are stored.
        pages: of the layers that see everything.
        windows: which pages have memory in the others; `None` for a model without such layers.
        device: where.

    Raises:
        ModelError: there is not enough.
    """

    def __init__(
        self, spec: ModelSpec, kind: CacheKind, pages: int, windows: WindowSlots | None, device: torch.device
    ) -> None:
        self._windows = windows
        narrow = sum(window > 0 for window in spec.windows)
        try:
            self.whole = make_store(spec, kind, spec.num_layers - narrow, pages, device)
            """Of the layers that see everything; slots are those of the pool."""
            self._narrow = None if windows is None else make_store(spec, kind, narrow, windows.size, device)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            free = free_memory(device) / 2**30
            raise ModelError(
                f"a cache of {pages * PAGE_TOKENS:,} tokens does not fit: {free:.2f} GiB are free; load with a smaller "
                "--cache-tokens or --context, or with --kv-cache q4"
            ) from error
        counts = [0, 0]
        self._places: list[tuple[bool, int]] = []
        for window in spec.windows:
            self._places.append((window > 0, counts[window > 0]))
            counts[window > 0] += 1

    @property
    def bytes(self) -> int:
        """On the device."""
        return self.whole.bytes + (0 if self._narrow is None else self._narrow.bytes)

    def is_narrow(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return self._places[layer][0]

    def layer(self, index: int) -> LayerPages:
        """One layer as the kernels and their references read it."""
        narrow, place = self._places[index]
        return self._store(narrow).layer(place)

    def copy_rows(self, source: Page, target: Page, rows: int) -> None:
        """The first rows of one page into another; both have memory in all layers."""
        self.whole.copy_rows(source.slot, target.slot, rows)
        if self._windows is not None and self._narrow is not None:
            from_slot, to_slot = self._windows.slot(source), self._windows.slot(target)
            assert from_slot is not None
            assert to_slot is not None
            self._narrow.copy_rows(from_slot, to_slot, rows)

    def _store(self, narrow: bool) -> PageStore:
        if not narrow:
            return self.whole
        assert self._narrow is not None
        return self._narrow


class SequenceTables:
    """Where the pages of the running sequence are, for the host and on the device.

    Args:
        longest: pages of the longest sequence.
        windows: see `PageMemory`.
    """

    def __init__(self, longest: int, windows: WindowSlots | None, device: torch.device) -> None:
        self._windows = windows
        self._device = device
        self.whole = torch.zeros(longest, dtype=torch.int32, device=device)
        self.narrow = self.whole if windows is None else torch.zeros_like(self.whole)
        self._lists = (PageList(), PageList())

    def write(self, pages: Sequence[Page], start: int) -> None:
        """Pages of the sequence from `start` on have changed; in layers with a window any may have."""
        whole = PageList(tuple(page.slot for page in pages))
        narrow = whole
        self._copy(self.whole, whole, start)
        if self._windows is not None:
            narrow = PageList(tuple(self._windows.slot(page) or 0 for page in pages))
            self._copy(self.narrow, narrow, 0)
        self._lists = (whole, narrow)

    def of(self, narrow: bool) -> PageList:
        """The same for the host."""
        return self._lists[narrow]

    def _copy(self, table: Tensor, pages: PageList, start: int) -> None:
        slots = torch.tensor(pages.slots[start:], dtype=torch.int32)
        table[start : start + len(slots)] = slots.to(self._device, non_blocking=True)


class CacheRows:
    """Keys and values of all layers into the pages of the running sequence and out of them.

    Args:
        memory, tables: of one cache.
        spec, dtype: of the model, and how it computes.
        open_rows: how rows get into pages.
    """

    def __init__(
        self, memory: PageMemory, tables: SequenceTables, spec: ModelSpec, dtype: torch.dtype, open_rows: OpenRows
    ) -> None:
        self._memory, self._tables, self._windows = memory, tables, spec.windows
        self._rows: list[LayerRows] = [
            open_rows(memory.layer(layer), tables.narrow if memory.is_narrow(layer) else tables.whole, dtype)
            for layer in range(spec.num_layers)
        ]

    def append(self, layer: int, start: int, exact_from: int, new: Tensor) -> Iterator[Seen]:
        """Stores new positions of one layer from `start` on, and gives what they see: see `LayerRows`."""
        window = self._windows[layer]
        span = Span(max(start + 1 - window, 0) if window else 0, start, exact_from)
        return self._rows[layer].append(self._tables.of(self._memory.is_narrow(layer)), span, new)
