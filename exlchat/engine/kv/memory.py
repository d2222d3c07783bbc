"""The memory of all pages of a model: of the layers that see everything, and of those that see a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.kv.pool import Page
from exlchat.engine.kv.rows import ChunkSpan, LayerRows, PageList, SeenRows
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
        split: where; the pages of a layer lie on its card.

    Raises:
        ModelError: there is not enough.
    """

    def __init__(
        self, spec: ModelSpec, kind: CacheKind, pages: int, windows: WindowSlots | None, split: LayerSplit
    ) -> None:
        self._windows = windows
        self._split = split
        seen = [[spec.windows[layer] > 0 for layer in split.layers(card)] for card in range(len(split.devices))]
        narrow, whole = (
            [(device, here.count(kind)) for device, here in zip(split.devices, seen, strict=True)]
            for kind in (True, False)
        )
        try:
            self.whole = make_store(spec, kind, whole, pages, kv_heads=split.kv_heads)
            """Of the layers that see everything; slots are those of the pool."""
            self._narrow = None
            if windows is not None:
                self._narrow = make_store(spec, kind, narrow, windows.size, kv_heads=split.kv_heads)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            free = min(free_memory(device) for device in split.devices) / 2**30
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
        return self.whole.bytes + (0 if self._narrow is None else self._narrow.bytes)

    def is_narrow(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return self._places[layer][0]

    def cards(self, layer: int) -> Sequence[int]:
        """Where a layer's pages lie: on one, or some heads of them on each."""
        split = self._split
        return range(len(split.devices)) if split.together else (split.card(layer),)

    def layer(self, index: int, card: int = 0) -> LayerPages:
        """`card`: where each has some heads of it, whose."""
        narrow, place = self._places[index]
        return self._store(narrow).layer(place, card)

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


class PageTables:
    """Which page holds tokens 256 i and on of each sequence: a row a sequence, whose address never changes.

    Args:
        rows: how many sequences.
        longest: pages of the longest sequence.
        windows: see `PageMemory`.
        devices: the cards, each of which has the tables.
    """

    def __init__(self, rows: int, longest: int, windows: WindowSlots | None, devices: Sequence[torch.device]) -> None:
        self._windows, self._devices = windows, devices
        self._whole = [torch.zeros(rows, longest, dtype=torch.int32, device=device) for device in devices]
        self._narrow = self._whole if windows is None else [torch.zeros_like(table) for table in self._whole]
        self._lists = [(PageList(), PageList())] * rows
        self._shown: list[object] = []

    @property
    def longest(self) -> int:
        """Pages of the longest sequence."""
        return self._whole[0].shape[1]

    def alike(self, rows: int) -> PageTables:
        """Others of the same width, into which a captured pass is shown the sequences that it is about."""
        return PageTables(rows, self.longest, self._windows, self._devices)

    def of(self, narrow: bool, card: int = 0) -> Tensor:
        """int32 `[rows, longest]` on a card, of layers that see everything, or of those that see a window only."""
        return (self._narrow if narrow else self._whole)[card]

    def lists(self, row: int, narrow: bool) -> PageList:
        """A row for the host."""
        return self._lists[row][narrow]

    def write(self, row: int, pages: Sequence[Page], start: int) -> None:
        """Pages of a sequence from `start` on have changed; in layers with a window any may have."""
        whole = PageList(tuple(page.slot for page in pages))
        narrow = whole
        self._copy(self._whole, row, whole, start)
        if self._windows is not None:
            narrow = PageList(tuple(self._windows.slot(page) or 0 for page in pages))
            self._copy(self._narrow, row, narrow, 0)
        self._lists[row] = (whole, narrow)

    def show(self, others: PageTables, rows: Sequence[int]) -> None:
        """The first rows become these of others. Enqueued, and only where something has changed."""
        shown: list[object] = [others._lists[row] for row in rows]
        before = self._shown
        if shown == before:
            return
        kinds = [(self._whole, others._whole)]
        if self._windows is not None:
            kinds.append((self._narrow, others._narrow))
        for ours, theirs in kinds:
            for table, other in zip(ours, theirs, strict=True):
                for to, row in enumerate(rows):
                    if to >= len(before) or shown[to] is not before[to]:
                        table[to].copy_(other[row])
        self._shown = shown

    def _copy(self, tables: Sequence[Tensor], row: int, pages: PageList, start: int) -> None:
        slots = torch.tensor(pages.slots[start:], dtype=torch.int32)
        for table in tables:
            table[row, start : start + len(slots)] = slots.to(table.device, non_blocking=True)


class CacheRows:
    """Keys and values of all layers into the pages of one sequence and out of them.

    Args:
        memory, tables: of one cache.
        row: of the tables.
        spec: of the model.
        open_rows: gives the rows of a layer's pages by the table of the sequence.
    """

    def __init__(
        self,
        memory: PageMemory,
        tables: PageTables,
        row: int,
        spec: ModelSpec,
        open_rows: Callable[[LayerPages, Tensor], LayerRows],
    ) -> None:
        self._memory, self._tables, self._row, self._windows = memory, tables, row, spec.windows
        self._rows: list[list[LayerRows]] = [
            [
                open_rows(memory.layer(layer, part), tables.of(memory.is_narrow(layer), card)[row])
                for part, card in enumerate(memory.cards(layer))
            ]
            for layer in range(spec.num_layers)
        ]

    def append(self, layer: int, start: int, exact_from: int, new: Tensor, part: int) -> Iterator[SeenRows]:
        """`part`: which card's heads these are, where each has some; 0 where one has all."""
        window = self._windows[layer]
        span = ChunkSpan(max(start + 1 - window, 0) if window else 0, start, exact_from)
        return self._rows[layer][part].append(self._tables.lists(self._row, self._memory.is_narrow(layer)), span, new)


@dataclass(frozen=True, slots=True)
class ExactRows:
    """Positions from `first` to before `end` that are known as they were before they were stored, in the last page."""

    first: int
    end: int

    @property
    def last_page(self) -> int:
        """Where the page of the last one begins: of older pages nothing is known any more."""
        return max(self.end - 1, 0) // PAGE_TOKENS * PAGE_TOKENS


NO_ROWS = ExactRows(0, 0)


@dataclass(slots=True, eq=False)
class TableSlot:
    """A row of the tables, and what is left there of the sequence that used it last.

    Args:
        rows: opened when they are first wanted.
        ids, exact: of that sequence, and what `rows` still know of it.
    """

    row: int
    rows: CacheRows | None = None
    ids: list[int] = field(default_factory=list)
    exact: ExactRows = NO_ROWS
