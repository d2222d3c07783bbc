"""A sequence of tokens whose keys and values stand in pages of its model's pool.

When it is closed, its pages stay in the pool for as long as there is room, and whatever begins like it begins there.
What they hold is never written over while they can be found: a page that is shared up to its middle is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.memory import NO_ROWS, ExactRows, TableSlot
from exlchat.engine.kv.pool import Known, Page, PoolFullError
from exlchat.engine.kv.rows import SeenRows
from exlchat.engine.kv.sizes import pages_of
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.info import ModelError


class KVSequence:
    """One of any number over the pages of a model: what several begin with is there once.

    Args:
        cache: of the model.
    """

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.ids: list[int] = []
        """`ids[i]` is the token whose key and value stand at position `i` of every layer that sees it."""
        self.pages: list[Page] = []
        """In order; the last ones may be reserved and hold nothing."""
        self._slot: TableSlot | None = None
        self._in_window: list[Page] = []
        self._owner = ""
        self._appended: tuple[int, int] | None = None
        self._exact = NO_ROWS

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def filled(self) -> list[Page]:
        """The pages that hold something, in order."""
        return [page for page in self.pages if page.ids]

    @property
    def capacity(self) -> int:
        """Tokens that fit into the pages that it has."""
        return len(self.pages) * PAGE_TOKENS

    @property
    def row(self) -> int:
        """Of `KVCache.tables`; another after `close`."""
        return self._placed.row

    @property
    def _placed(self) -> TableSlot:
        if self._slot is None:
            self._slot = self.cache.take_slot()
        return self._slot

    def begin(self, ids: Sequence[int], *, most: int | None = None, owner: str = "") -> int:
        """Leaves what it was for the longest known beginning of another sequence, and returns its length.

        Args:
            ids: the new sequence.
            most: no more of it than this.
            owner: a label for the pages that it uses.

        Raises:
            PoolFullError: other sequences hold what it would see in layers with a window.
        """
        self.close()
        self.cache.close_retired()
        before, exact = self._placed.ids, self._placed.exact
        self._owner = owner
        known = self.cache.pool.find(ids, len(ids) if most is None else most)
        tokens = self.cache.usable(known)
        for page in known.pages[: tokens // PAGE_TOKENS]:
            self.cache.pool.hold(page)
            self._use(page)
        whole = len(self.pages) * PAGE_TOKENS
        # Before a page is copied, which may take the memory of any that is not held.
        self._hold_window(tokens, whole)
        if tokens > whole:
            assert known.partial is not None
            if not self._continue_in(known.partial, ids[whole:tokens]):
                tokens = self.cache.usable(Known(known.pages, None, 0))
                self.cache.pool.release(self.pages[tokens // PAGE_TOKENS :])
                del self.pages[tokens // PAGE_TOKENS :]
        self.ids = list(ids[:tokens])
        if exact.first < tokens <= exact.end and before[:tokens] == self.ids and tokens > exact.last_page:
            self._exact = ExactRows(exact.first, tokens)
        self._hold_window(tokens, tokens)
        self.cache.tables.write(self._placed.row, self.pages, 0)
        return tokens

    def close(self) -> None:
        """Ends the sequence; again is harmless. Its pages stay known, and it may begin anew."""
        if self._slot is None:
            return
        if self.cache.windows is not None:
            self.cache.windows.release(self._in_window)
        self.cache.pool.release(self.pages)
        slot, self._slot = self._slot, None
        if self._appended is not None:
            slot.ids, slot.exact = [], NO_ROWS  # a chunk that came to nothing has overwritten what was known
        elif self.ids:
            slot.ids, slot.exact = self.ids, self._exact
        self.cache.give_back(slot)
        self._appended, self._exact = None, NO_ROWS
        self.pages, self.ids, self._in_window = [], [], []

    def retire(self) -> None:
        """Nothing is added any more: it is closed when another sequence begins."""
        self.cache.retire(self.close)

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all; the content stays.

        Raises:
            PoolFullError: other sequences hold all pages.
            ModelError: no sequence may be so long, or there is no memory for the cache.
        """
        needed, before = pages_of(length), len(self.pages)
        if needed <= before:
            return
        if needed > self.cache.tables.longest:
            raise ModelError(f"the context holds {self.cache.max_seq_len:,} tokens, and {length:,} were wanted")
        _ = self.cache.memory
        try:
            self._fill(needed, length)
        except PoolFullError:
            raise PoolFullError(
                f"the cache has no room for {length:,} tokens in one conversation; load with a larger --cache-tokens"
            ) from None
        finally:
            self.cache.tables.write(self._placed.row, self.pages, before)

    def extend(self, ids: Sequence[int]) -> None:
        """The next positions, which have been stored in every layer, hold these tokens."""
        start, at = len(self.ids), 0
        if self._appended != (start, start + len(ids)):
            self._exact = ExactRows(start + len(ids), start + len(ids))  # the device has stored them
            self.cache.let_go(self._placed)
        else:
            self._exact = ExactRows(self._exact.first if self._exact.end == start else start, start + len(ids))
        self._appended = None
        while at < len(ids):
            index, row = divmod(len(self.ids), PAGE_TOKENS)
            new = ids[at : at + PAGE_TOKENS - row]
            self.cache.pool.extend(self.pages[index], self._parent(index), new)
            self.ids += new
            at += len(new)

    def cut(self, length: int) -> int:
        """Forgets positions `length` and on: nothing finds them any more.

        Pages behind them are given back, reserved ones too, so that `reserve` comes before the next token is stored.

        Args:
            length: at most as many as there are.

        Returns:
            How many tokens stay: `length`, or fewer in a model with windows, where a layer no longer has what the next
            token would see; those between are computed again, as behind `begin`.
        """
        if not 0 <= length <= len(self.ids):
            raise ValueError(f"a sequence of {len(self.ids):,} tokens cannot be cut to {length:,}")
        whole, rows = divmod(length, PAGE_TOKENS)
        tokens = self.cache.usable(Known(tuple(self.pages[:whole]), self.pages[whole] if rows else None, rows))
        exact, self._appended = self._exact if self._appended is None else NO_ROWS, None
        still_exact = exact.first < tokens <= exact.end and tokens > exact.last_page
        self._exact = ExactRows(exact.first if still_exact else tokens, tokens)
        kept = pages_of(tokens)
        behind = self.pages[kept:]
        if tokens % PAGE_TOKENS and tokens < len(self.ids):
            self.cache.pool.cut(self.pages[kept - 1], tokens % PAGE_TOKENS)
        for page in behind:
            self.cache.pool.cut(page, 0)
        del self.ids[tokens:], self.pages[kept:]
        self._hold_window(tokens, tokens)
        self.cache.pool.release(behind)
        self.cache.tables.write(self._placed.row, self.pages, len(self.pages))
        return tokens

    def append(self, layer: int, start: int, new: Tensor, part: int = 0) -> Iterator[SeenRows]:
        """Stores new positions of one layer, when the first of what they see is asked for.

        Args:
            new: `[2, kv_heads, tokens, head_dim]`: keys and values of positions `start` and on, which have room.
            part: which card's heads these are, where each has some.

        Returns:
            What they see, part by part: in few bits, the positions of a token's own page as they were before they were
            stored, as far as that is known. In a layer with a window nothing before the first that the first new one
            sees.
        """
        self._appended = (start, start + new.shape[2])
        exact_from = self._exact.first if self._exact.end == start else start
        return self.cache.rows(self._placed).append(layer, start, exact_from, new, part)

    def _fill(self, pages: int, length: int) -> None:
        try:
            while len(self.pages) < pages:
                self._take()
            self._hold_window(len(self.ids), length)
        except PoolFullError:
            if not self.cache.close_retired():
                raise
            self._fill(pages, length)

    def _use(self, page: Page) -> None:
        page.owners.add(self._owner)
        self.pages.append(page)

    def _take(self) -> Page:
        page = self.cache.pool.take(self.pages[-1] if self.pages else None)
        self._use(page)
        return page

    def _continue_in(self, known: Page, ids: Sequence[int]) -> bool:
        """Goes on behind the first rows of a page, which hold `ids`; whether that was possible.

        A page of which nothing else is known is used as it is; of any other, the rows are copied.
        """
        parent, alone = self._parent(len(self.pages)), not known.users
        self.cache.pool.hold(known)
        if alone and len(ids) == len(known.ids):
            self._use(known)
            return True
        try:
            page = self._take()
        except PoolFullError:
            if alone:
                self.cache.pool.cut(known, len(ids))
                self._use(known)
            else:
                self.cache.pool.release([known])
            return alone
        self.cache.copy_rows(known, page, len(ids))
        self.cache.pool.extend(page, parent, ids)
        self.cache.pool.release([known])
        return True

    def _hold_window(self, start: int, length: int) -> None:
        """Memory in layers with a window, for what tokens from `start` on see, up to `length`."""
        if self.cache.windows is None:
            return
        held, self._in_window = self._in_window, self.pages[self.cache.first_page(start) : pages_of(length)]
        try:
            self.cache.windows.hold(self._in_window)
        except PoolFullError:
            self._in_window = []
            raise
        finally:
            self.cache.windows.release(held)

    def _parent(self, index: int) -> bytes:
        """Hash of what stands before a page of the sequence."""
        return self.pages[index - 1].end if index else self.cache.pool.root
