"""The keys and values of one model: its pool of pages, their memory, and the tables of the sequences that use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.kv.hash import HASH_BYTES
from exlchat.engine.kv.memory import NO_ROWS, CacheRows, PageMemory, PageTables, TableSlot
from exlchat.engine.kv.pool import Known, Page, PagePool
from exlchat.engine.kv.rows import OpenRows, TorchLayerRows
from exlchat.engine.kv.sizes import (
    MOST_AT_ONCE,
    cache_bytes,
    cache_kind,
    layer_bytes,
    pages_of,
    pages_seen,
    window_slots,
)
from exlchat.engine.kv.windows import WindowSlots
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.info import CacheReport

_NO_ROOT = bytes(HASH_BYTES)
_SLOTS = 144
"""Sequences at once: the rows of the widest pass, a prompt that they share, and what is read beside them."""
_KEPT_ROWS = 16
"""Sequences whose last page is known as it was before it was stored: in few bits 32 MB each of an 8B."""


class KVCache:
    """What the sequences of a model share (`KVSequence`). Its memory is taken when tokens are first reserved.

    Args:
        spec: sizes of the model.
        kind: a name of `KINDS`, how keys and values are stored.
        compute_dtype: how the transformer reads and writes them.
        max_seq_len: no sequence gets longer.
        tokens: how many the pool holds, of all sequences; as many as fit one sequence unless given.
        root: see `PagePool`.
        rows: how rows get into pages and out of them; by plain torch unless given.
        split: the cards of the layers, `device` the first of them; all on it unless given.

    Raises:
        ModelError: there is no such kind, or it does not fit the model's heads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        kind: str,
        compute_dtype: torch.dtype,
        device: torch.device,
        max_seq_len: int,
        *,
        tokens: int | None = None,
        root: bytes = _NO_ROOT,
        rows: OpenRows = TorchLayerRows,
        split: LayerSplit | None = None,
    ) -> None:
        self.max_seq_len = max_seq_len
        self.kind = cache_kind(spec, kind)
        """How keys and values are stored."""
        self._spec = spec
        self._split = split or LayerSplit.on(device, spec.num_layers)
        longest = pages_of(max_seq_len)
        self.pool = PagePool(max(longest, (tokens or 0) // PAGE_TOKENS), root)
        self._window: int = max(spec.windows)
        slots = window_slots(spec, longest, self.pool.size)
        self.windows = WindowSlots(slots) if slots else None
        """Which pages have memory in layers that see a window only; `None` for a model without such layers."""
        self.tables = PageTables(_SLOTS, longest, self.windows, self._split.devices)
        """Where the pages of all sequences are, on each card."""
        self._opened = lambda pages, table: rows(pages, table, compute_dtype)
        self._memory: PageMemory | None = None
        self._free = [TableSlot(row) for row in reversed(range(_SLOTS))]
        self._opened_rows: set[TableSlot] = set()
        self._close_retired: Callable[[], None] | None = None
        self._asked = self._found = 0

    @property
    def bytes(self) -> int:
        slots = self.windows.size if self.windows else 0
        return cache_bytes(self._spec, self.kind, self.pool.size, slots)

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values in all layers, as they are stored."""
        return self._spec.num_layers * layer_bytes(self._spec, self.kind)

    @property
    def on_gpu(self) -> bool:
        return self._split.first.type == "cuda"

    @property
    def has_windows(self) -> bool:
        """Whether some layers see a window only, so that old pages have nothing in them there."""
        return self.windows is not None

    @property
    def memory(self) -> PageMemory:
        """Of all pages. Raises `ModelError` when there is not enough."""
        if self._memory is None:
            self._memory = PageMemory(self._spec, self.kind, self.pool.size, self.windows, self._split)
        return self._memory

    def windows_of(self, pages: int, *, answers: int = 0, each: int = 0) -> int:
        """How many pages have memory in layers with a window while a sequence of so many is made.

        Args:
            answers: sequences beside it that go on behind it, with `each` pages more.
        """
        alone = min(pages, pages_seen(self._spec, MOST_AT_ONCE))
        return alone + answers * min(each, pages_seen(self._spec))

    def fits(self, pages: int, windows: int) -> bool:
        """Whether there may be so many pages at once, and so many with memory in layers with a window."""
        return pages <= self.pool.size and (self.windows is None or windows <= self.windows.size)

    def layer(self, index: int, card: int = 0) -> LayerPages:
        """Keys and values of one layer, of all sequences; always at the same place.

        Args:
            card: where each has some heads of it, whose.
        """
        return self.memory.layer(index, card)

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` shares with what is there, from its beginning. Changes nothing."""
        return self.usable(self.pool.find(ids, len(ids)))

    def usable(self, known: Known) -> int:
        """How many of the known tokens a sequence can begin with: the window of the next one has to be there too."""
        if self.windows is None:
            return known.tokens
        pages = known.pages if known.partial is None else (*known.pages, known.partial)
        there = [self.windows.slot(page) is not None for page in pages]
        ends: list[int] = [known.tokens, *range(len(known.pages) * PAGE_TOKENS, 0, -PAGE_TOKENS)]
        for tokens in ends:
            if all(there[self.first_page(tokens) : pages_of(tokens)]):
                return tokens
        return 0

    def first_page(self, tokens: int) -> int:
        """The first page of which the token behind so many sees something in a layer with a window."""
        return max(tokens + 1 - self._window, 0) // PAGE_TOKENS

    def retire(self, close: Callable[[], None]) -> None:
        """A sequence that has ended holds its pages until another begins, which calls this: what was said last goes
        last.
        """
        self.close_retired()
        self._close_retired = close

    def close_retired(self) -> bool:
        """Another sequence begins, or needs pages; whether there was one."""
        close, self._close_retired = self._close_retired, None
        if close is not None:
            close()
        return close is not None

    def take_slot(self) -> TableSlot:
        """A row of the tables, the one that was given back last."""
        if not self._free:
            raise RuntimeError(f"{_SLOTS} sequences are open, and there are no tables for another")
        return self._free.pop()

    def give_back(self, slot: TableSlot) -> None:
        """Nobody uses it any more. Of free ones it alone keeps its last page as it was before it was stored."""
        for other in self._free:
            other.rows, other.exact = None, NO_ROWS
            self._opened_rows.discard(other)
        self._free.append(slot)

    def rows(self, slot: TableSlot) -> CacheRows:
        if slot.rows is None:
            slot.rows = CacheRows(self.memory, self.tables, slot.row, self._spec, self._opened)
            self._opened_rows.add(slot)
        return slot.rows

    def let_go(self, slot: TableSlot) -> None:
        """Its last page is known as it is stored only: of many such sequences not all keep the memory for more."""
        if len(self._opened_rows) > _KEPT_ROWS:
            slot.rows = None
            self._opened_rows.discard(slot)

    def copy_rows(self, source: Page, target: Page, rows: int) -> None:
        if self.windows is not None:
            both = [source, target]
            self.windows.hold(both)
            self.windows.release(both)
        self.memory.copy_rows(source, target, rows)

    def note_prompt(self, asked: int, found: int) -> None:
        self._asked, self._found = self._asked + asked, self._found + found

    def report(self) -> CacheReport:
        """What the pool holds and has saved, without the disk."""
        listed, idle = list(self.pool.listed), len(self.pool.idle)
        owners = Counter(owner for page in listed for owner in page.owners if owner)
        return CacheReport(
            kind=self.kind.name,
            page_tokens=PAGE_TOKENS,
            page_bytes=self.bytes // self.pool.size,
            pages=self.pool.size,
            running=self.pool.size - self.pool.free - idle,
            idle=idle,
            owners=tuple(owners.most_common()),
            evictions=self.pool.evictions,
            prompt_tokens=self._asked,
            found_tokens=self._found,
            disk=None,
            kept_tokens=sum(len(page.ids) for page in listed),
            shared=sum(len(page.owners - {""}) > 1 for page in listed),
        )
