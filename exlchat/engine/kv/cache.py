"""The sequence that is being computed, in the pages of its model: where each token's keys and values stand.

When another sequence begins, the pages of the last one stay in the pool for as long as there is room, and whatever
begins like them begins there. What they hold is never written over while they can be found: a page that is shared up
to its middle is copied.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.kv.hash import HASH_BYTES
from exlchat.engine.kv.memory import CacheRows, PageMemory, SequenceTables
from exlchat.engine.kv.pool import Known, Page, PagePool, PoolFullError
from exlchat.engine.kv.rows import OpenRows, Seen, TorchLayerRows
from exlchat.engine.kv.sizes import cache_bytes, cache_kind, layer_bytes, pages_of, window_slots
from exlchat.engine.kv.windows import WindowSlots
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.info import CacheReport, ModelError

PageHash = bytes
_NO_ROOT = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class _Exact:
    """Positions from `first` to before `end` that are known as they were before they were stored, in the last page."""

    first: int
    end: int

    @property
    def last_page(self) -> int:
        """Where the page of the last one begins: of older pages nothing is known any more."""
        return max(self.end - 1, 0) // PAGE_TOKENS * PAGE_TOKENS


class KVCache:
    """One sequence at a time, and the pool of pages behind it. Its memory is taken when it is first reserved.

    Args:
        spec: sizes of the model.
        kind: a name of `KINDS`, how keys and values are stored.
        compute_dtype: how the transformer reads and writes them.
        max_seq_len: more tokens than this never fit.
        tokens: how many the pool holds, of all sequences; as many as fit one sequence unless given.
        root: see `PagePool`.
        rows: how rows get into pages and out of them; by plain torch unless given.

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
        root: PageHash = _NO_ROOT,
        rows: OpenRows = TorchLayerRows,
    ) -> None:
        self.max_seq_len = max_seq_len
        self.kind = cache_kind(spec, kind)
        """How keys and values are stored."""
        self._spec = spec
        self._compute_dtype = compute_dtype
        self._device = device
        longest = pages_of(max_seq_len)
        self.pool = PagePool(max(longest, (tokens or 0) // PAGE_TOKENS), root)
        self._window: int = max(spec.windows)
        slots = window_slots(spec, longest, self.pool.size)
        self._windows = WindowSlots(slots) if slots else None
        self._tables = SequenceTables(longest, self._windows, device)
        self._open_rows = rows
        self._memory: PageMemory | None = None
        self._opened_rows: CacheRows | None = None
        self._ids: list[int] = []
        self._pages: list[Page] = []
        self._in_window: list[Page] = []
        self._owner = ""
        self._asked = self._found = 0
        self._appended: tuple[int, int] | None = None
        self._exact = _Exact(0, 0)
        self._left: tuple[list[int], _Exact] = ([], self._exact)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """`ids[i]` is the token whose key and value stand at position `i` of every layer that sees it."""
        return self._ids

    @property
    def sequence(self) -> Sequence[Page]:
        """The pages of the running sequence that hold something, in order."""
        return [page for page in self._pages if page.ids]

    @property
    def bytes(self) -> int:
        """Of the pool, on the device."""
        slots = self._windows.size if self._windows else 0
        return cache_bytes(self._spec, self.kind, self.pool.size, slots)

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values in all layers, as they are stored."""
        return self._spec.num_layers * layer_bytes(self._spec, self.kind)

    @property
    def capacity(self) -> int:
        """Tokens that fit into the pages that the sequence has."""
        return len(self._pages) * PAGE_TOKENS

    @property
    def on_gpu(self) -> bool:
        """Where its memory is."""
        return self._device.type == "cuda"

    @property
    def has_windows(self) -> bool:
        """Whether some layers see a window only, so that old pages have nothing in them there."""
        return self._windows is not None

    @property
    def memory(self) -> PageMemory:
        """Of all pages. Raises `ModelError` when there is not enough."""
        if self._memory is None:
            self._memory = PageMemory(self._spec, self.kind, self.pool.size, self._windows, self._device)
            _ = self._rows  # takes memory too, which has to be there before the first token
        return self._memory

    @property
    def _rows(self) -> CacheRows:
        if self._opened_rows is None:
            opened = CacheRows(self.memory, self._tables, self._spec, self._compute_dtype, self._open_rows)
            self._opened_rows = opened
        return self._opened_rows

    @property
    def page_table(self) -> Tensor:
        """int32 `[pages of the longest sequence]`, the page of tokens 256 i and on; its address never changes."""
        return self._tables.whole

    def table(self, layer: int) -> Tensor:
        """As `page_table`, for one layer: those that see a window have another."""
        return self._tables.narrow if self._spec.windows[layer] else self._tables.whole

    def pages(self, layer: int) -> LayerPages:
        """Keys and values of one layer, of all sequences; always at the same place."""
        return self.memory.layer(layer)

    def beside(self) -> KVCache:
        """Another sequence over the same pages, with nothing in it yet: what both begin with is there once."""
        other = copy.copy(self)
        _ = self.memory
        other._memory = self._memory
        other._tables = SequenceTables(len(self.page_table), self._windows, self._device)
        other._opened_rows = None
        other._ids, other._pages, other._in_window = [], [], []
        other._asked = other._found = 0
        other._appended, other._exact = None, _Exact(0, 0)
        other._left = ([], other._exact)
        return other

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` shares with what is there, from its beginning. Changes nothing."""
        return self._usable(self.pool.find(ids, len(ids)))

    def begin(self, ids: Sequence[int], *, most: int | None = None, owner: str = "") -> int:
        """Leaves the sequence so far for the longest known beginning of another, and returns its length.

        Args:
            ids: the new sequence.
            most: no more of it than this.
            owner: a label for the pages that it uses.
        """
        self.clear()
        before, exact = self._left
        self._owner = owner
        known = self.pool.find(ids, len(ids) if most is None else most)
        tokens = self._usable(known)
        for page in known.pages[: tokens // PAGE_TOKENS]:
            self.pool.hold(page)
            self._use(page)
        whole = len(self._pages) * PAGE_TOKENS
        # Before a page is copied, which may take the memory of any that is not held.
        self._hold_window(tokens, whole)
        if tokens > whole:
            assert known.partial is not None
            if not self._continue_in(known.partial, ids[whole:tokens]):
                tokens = self._usable(Known(known.pages, None, 0))
                self.pool.release(self._pages[tokens // PAGE_TOKENS :])
                del self._pages[tokens // PAGE_TOKENS :]
        self._ids = list(ids[:tokens])
        if exact.first < tokens <= exact.end and before[:tokens] == self._ids and tokens > exact.last_page:
            self._exact = _Exact(exact.first, tokens)
        self._asked, self._found = self._asked + len(ids), self._found + tokens
        self._hold_window(tokens, tokens)
        self._tables.write(self._pages, 0)
        return tokens

    def clear(self) -> None:
        """Leaves the sequence. Its pages stay known."""
        if self._windows is not None:
            self._windows.release(self._in_window)
        self.pool.release(self._pages)
        if self._appended is not None:
            self._left = ([], _Exact(0, 0))  # a chunk that came to nothing has overwritten what was known
        elif self._ids:
            self._left = (self._ids, self._exact)
        self._appended = None
        self._pages, self._ids, self._in_window = [], [], []
        self._exact = _Exact(0, 0)

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all. Raises `ModelError` when there is none; the content stays."""
        needed, before = pages_of(length), len(self._pages)
        if needed <= before:
            return
        if needed > len(self.page_table):
            raise ModelError(f"the context holds {self.max_seq_len:,} tokens, and {length:,} were wanted")
        _ = self.memory
        try:
            while len(self._pages) < needed:
                self._take()
            self._hold_window(len(self._ids), length)
        except PoolFullError:
            raise ModelError(
                f"the cache has no room for {length:,} tokens in one conversation; load with a larger --cache-tokens"
            ) from None
        finally:
            self._tables.write(self._pages, before)

    def extend(self, ids: Sequence[int]) -> None:
        """The next positions, which have been stored in every layer, hold these tokens."""
        start, at = len(self._ids), 0
        if self._appended != (start, start + len(ids)):
            self._exact = _Exact(start + len(ids), start + len(ids))  # the device has stored them
        else:
            self._exact = _Exact(self._exact.first if self._exact.end == start else start, start + len(ids))
        self._appended = None
        while at < len(ids):
            index, row = divmod(len(self._ids), PAGE_TOKENS)
            new = ids[at : at + PAGE_TOKENS - row]
            self.pool.extend(self._pages[index], self._parent(index), new)
            self._ids += new
            at += len(new)

    def cut(self, length: int) -> int:
        """Forgets positions `length` and on of the running sequence: nothing finds them any more.

        Pages behind them are given back, reserved ones too, so that `reserve` comes before the next token is stored.

        Args:
            length: at most as many as there are.

        Returns:
            How many tokens stay: `length`, or fewer in a model with windows, where a layer no longer has what the next
            token would see; those between are computed again, as behind `begin`.
        """
        if not 0 <= length <= len(self._ids):
            raise ValueError(f"a sequence of {len(self._ids):,} tokens cannot be cut to {length:,}")
        whole, rows = divmod(length, PAGE_TOKENS)
        tokens = self._usable(Known(tuple(self._pages[:whole]), self._pages[whole] if rows else None, rows))
        exact, self._appended = self._exact if self._appended is None else _Exact(0, 0), None
        still_exact = exact.first < tokens <= exact.end and tokens > exact.last_page
        self._exact = _Exact(exact.first if still_exact else tokens, tokens)
        kept = pages_of(tokens)
        behind = self._pages[kept:]
        if tokens % PAGE_TOKENS and tokens < len(self._ids):
            self.pool.cut(self._pages[kept - 1], tokens % PAGE_TOKENS)
        for page in behind:
            self.pool.cut(page, 0)
        del self._ids[tokens:], self._pages[kept:]
        self._hold_window(tokens, tokens)
        self.pool.release(behind)
        self._tables.write(self._pages, len(self._pages))
        return tokens

    def append(self, layer: int, start: int, new: Tensor) -> Iterator[Seen]:
        """Stores new positions of one layer, when the first of what they see is asked for.

        Args:
            new: `[2, kv_heads, tokens, head_dim]`: keys and values of positions `start` and on, which have room.

        Returns:
            What they see, part by part: in few bits, the positions of a token's own page as they were before they were
            stored, as far as that is known. In a layer with a window nothing before the first that the first new one
            sees.
        """
        self._appended = (start, start + new.shape[2])
        return self._rows.append(layer, start, self._exact.first if self._exact.end == start else start, new)

    def report(self) -> CacheReport:
        """What the pool holds and has saved, without the disk."""
        listed = list(self.pool.listed)
        owners = Counter(owner for page in listed for owner in page.owners if owner)
        return CacheReport(
            kind=self.kind.name,
            page_tokens=PAGE_TOKENS,
            page_bytes=self.bytes // self.pool.size,
            pages=self.pool.size,
            running=len(self._pages),
            idle=len(self.pool.idle),
            owners=tuple(owners.most_common()),
            evictions=self.pool.evictions,
            prompt_tokens=self._asked,
            found_tokens=self._found,
            disk=None,
            kept_tokens=sum(len(page.ids) for page in listed),
            shared=sum(len(page.owners - {""}) > 1 for page in listed),
        )

    def _use(self, page: Page) -> None:
        page.owners.add(self._owner)
        self._pages.append(page)

    def _take(self) -> Page:
        page = self.pool.take(self._pages[-1] if self._pages else None)
        self._use(page)
        return page

    def _continue_in(self, known: Page, ids: Sequence[int]) -> bool:
        """Goes on behind the first rows of a page, which hold `ids`; whether that was possible.

        A page of which nothing else is known is used as it is; of any other, the rows are copied.
        """
        parent, alone = self._parent(len(self._pages)), not known.users
        self.pool.hold(known)
        if alone and len(ids) == len(known.ids):
            self._use(known)
            return True
        try:
            page = self._take()
        except PoolFullError:
            if alone:
                self.pool.cut(known, len(ids))
                self._use(known)
            else:
                self.pool.release([known])
            return alone
        if self._windows is not None:
            both = [known, page]
            self._windows.hold(both)
            self._windows.release(both)
        self.memory.copy_rows(known, page, len(ids))
        self.pool.extend(page, parent, ids)
        self.pool.release([known])
        return True

    def _usable(self, known: Known) -> int:
        """How many of the known tokens a sequence can begin with: the window of the next one has to be there too."""
        if self._windows is None:
            return known.tokens
        pages = known.pages if known.partial is None else (*known.pages, known.partial)
        there = [self._windows.slot(page) is not None for page in pages]
        ends: list[int] = [known.tokens, *range(len(known.pages) * PAGE_TOKENS, 0, -PAGE_TOKENS)]
        for tokens in ends:
            if all(there[self._first_page(tokens) : pages_of(tokens)]):
                return tokens
        return 0

    def _first_page(self, tokens: int) -> int:
        """The first page of which the token behind so many sees something in a layer with a window."""
        return max(tokens + 1 - self._window, 0) // PAGE_TOKENS

    def _hold_window(self, start: int, length: int) -> None:
        """Memory in layers with a window, for what tokens from `start` on see, up to `length`."""
        if self._windows is None:
            return
        held, self._in_window = self._in_window, self._pages[self._first_page(start) : pages_of(length)]
        try:
            self._windows.hold(self._in_window)
        except PoolFullError:
            self._in_window = []
            raise
        finally:
            self._windows.release(held)

    def _parent(self, index: int) -> PageHash:
        """Hash of what stands before a page of the sequence."""
        return self._pages[index - 1].end if index else self.pool.root
