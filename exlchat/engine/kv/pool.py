"""The pages of one model: which tokens each holds, who uses it, which one goes first when room is wanted.

A page is 256 tokens. It is found by content: by the hash of everything before it and the ids of its own tokens. Pages
that nobody uses keep what they hold until their room is wanted, the one that was let go longest ago first. No torch
here: `memory.py` has the memory that slots stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exlchat.engine.kv.hash import page_hash
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.info import ModelError

_MOST_BEGINNINGS = 8


class PoolFullError(ModelError):
    """Every page is in use by some sequence; one line, as of any `ModelError`."""

    def __init__(self, text: str = "the cache has no room left; load with a larger --cache-tokens") -> None:
        super().__init__(text)


@dataclass(slots=True, eq=False)
class Page:
    """One page of a pool.

    Args:
        slot: where its memory is.
        parent: hash of everything before it, once it holds something.
        ids: of the tokens that its first rows hold.
        hash: of everything up to its end, once it is full.
        users: sequences that hold it.
        listed: whether it can be found by what it holds.
        owners: labels of the sequences that have held it since it was taken.
    """

    slot: int
    parent: bytes = b""
    ids: list[int] = field(default_factory=list)
    hash: bytes | None = None
    users: int = 0
    listed: bool = False
    owners: set[str] = field(default_factory=set)

    @property
    def full(self) -> bool:
        return len(self.ids) == PAGE_TOKENS

    @property
    def end(self) -> bytes:
        """Hash of everything up to its end: what the page behind it has as its parent. Of full pages only."""
        if self.hash is None:
            raise ValueError("a page that is not full has no page behind it")
        return self.hash


@dataclass(frozen=True, slots=True)
class Known:
    """How much of a sequence a pool holds.

    Args:
        pages: full ones, from the beginning.
        partial: the page that goes on longest behind them, if any does.
        rows: how many of its tokens belong to the sequence.
    """

    pages: tuple[Page, ...]
    partial: Page | None
    rows: int

    @property
    def tokens(self) -> int:
        return len(self.pages) * PAGE_TOKENS + self.rows


class PagePool:
    """Pages and what is known of them.

    Args:
        pages: how many there are.
        root: stands before every first page; covers all that keys and values depend on besides ids.
    """

    def __init__(self, pages: int, root: bytes) -> None:
        if pages < 1:
            raise ValueError(f"a pool of {pages} pages holds nothing")
        self.root = root
        self.evictions = 0
        self._free = dict.fromkeys(range(pages))
        self._size = pages
        self._full: dict[bytes, Page] = {}
        self._after: dict[bytes, dict[Page, None]] = {}
        self._idle: dict[Page, None] = {}
        self._beginnings: dict[bytes, tuple[Page, ...]] = {}

    @property
    def size(self) -> int:
        return self._size

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def room(self) -> int:
        """Pages that hold nothing, or that nobody uses."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> Sequence[Page]:
        """Pages that hold something and that nobody uses, in the order in which they go."""
        return sorted(self._idle, key=self._is_warm)

    @property
    def listed(self) -> Iterable[Page]:
        """Pages that can be found by what they hold."""
        return (page for pages in self._after.values() for page in pages)

    def find(self, ids: Sequence[int], most: int) -> Known:
        """The longest beginning of `ids[:most]` that is there. Changes nothing."""
        pages: list[Page] = []
        parent, at = self.root, 0
        while at + PAGE_TOKENS <= most:
            page = self._full.get(page_hash(parent, ids[at : at + PAGE_TOKENS]))
            if page is None:
                break
            pages.append(page)
            parent, at = page.end, at + PAGE_TOKENS
        partial, rows = self._closest(parent, ids[at : min(at + PAGE_TOKENS, most)])
        return Known(tuple(pages), partial, rows)

    def take(self, after: Page | None = None) -> Page:
        """A page with nothing in it, used once.

        Args:
            after: the page before it; the next slot is taken where it is free, because neighbours can be read without
                copying.

        Raises:
            PoolFullError: every page is in use.
        """
        if not self._free:
            self._evict()
        wanted = 0 if after is None else after.slot + 1
        slot = wanted if wanted in self._free else next(iter(self._free))
        del self._free[slot]
        return Page(slot, users=1)

    def hold(self, page: Page) -> None:
        page.users += 1
        self._idle.pop(page, None)

    def release(self, pages: Sequence[Page]) -> None:
        """One user less of each page of a sequence, which are given in order: its end goes before its beginning."""
        for page in reversed(pages):
            page.users -= 1
            if page.users:
                continue
            if not page.listed or self._is_in_another(page):
                self._drop(page)
                continue
            for shorter in [one for one in self._after[page.parent] if not one.users and _begins(page.ids, one.ids)]:
                if shorter is not page:
                    self._drop(shorter)
            self._idle[page] = None

    def extend(self, page: Page, parent: bytes, ids: Sequence[int]) -> None:
        """The next rows of a page that one sequence uses hold these tokens now.

        Args:
            parent: hash of what stands before the page.
            ids: no more than fit.
        """
        if not page.ids:
            page.parent = parent
            self._list(page)
        page.ids += ids
        if not page.full:
            return
        page.hash = page_hash(page.parent, page.ids)
        twin = self._full.get(page.hash)
        if twin is None or not twin.users:
            if twin is not None:
                self._drop(twin)
            if page.listed:
                self._full[page.hash] = page
        else:
            self._unlist(page)

    def cut(self, page: Page, rows: int) -> None:
        """A page that nobody else uses forgets what stands behind its first rows; with none it is found no more."""
        if rows:
            self._forget(page)
        else:
            self._unlist(page)
        page.hash = None
        del page.ids[rows:]

    def keep_warm(self, ids: Sequence[int]) -> None:
        """These tokens are how many conversations begin (a system prompt): their pages go last.

        Holds for the eight beginnings that were named last, and for half of the pool at most.
        """
        known = self.find(ids, len(ids))
        pages = known.pages if known.partial is None else (*known.pages, known.partial)
        if not pages:
            return
        name = page_hash(self.root, ids)
        self._beginnings.pop(name, None)
        self._beginnings[name] = pages
        while len(self._beginnings) > _MOST_BEGINNINGS or 2 * len(self._warm_pages()) > self._size:
            del self._beginnings[next(iter(self._beginnings))]

    def _closest(self, parent: bytes, ids: Sequence[int]) -> tuple[Page | None, int]:
        best, most = None, 0
        for page in self._after.get(parent, ()):
            rows = common_length(page.ids, ids)
            # Of equal ones the latest: a second answer to a prompt then goes on behind the very numbers of the first.
            if rows and rows >= most:
                best, most = page, rows
        return best, most

    def _is_in_another(self, page: Page) -> bool:
        """Whether another page holds all of it: a branch that was left before it said anything new."""
        siblings = self._after.get(page.parent, ())
        return any(one is not page and _begins(one.ids, page.ids) for one in siblings)

    def _is_warm(self, page: Page) -> bool:
        return any(page in pages for pages in self._beginnings.values())

    def _warm_pages(self) -> set[Page]:
        return {page for pages in self._beginnings.values() for page in pages}

    def _evict(self) -> None:
        """Makes room of the page that was let go longest ago; of those that begin conversations, last."""
        victim = next((page for page in self._idle if not self._is_warm(page)), None) or next(iter(self._idle), None)
        if victim is None:
            raise PoolFullError
        self.evictions += 1
        self._drop(victim)

    def _list(self, page: Page) -> None:
        page.listed = True
        self._after.setdefault(page.parent, {})[page] = None

    def _unlist(self, page: Page) -> None:
        self._forget(page)
        if page.listed:
            page.listed = False
            siblings = self._after[page.parent]
            del siblings[page]
            if not siblings:
                del self._after[page.parent]

    def _forget(self, page: Page) -> None:
        """It is no longer found as a full page."""
        if page.hash is not None and self._full.get(page.hash) is page:
            del self._full[page.hash]

    def _drop(self, page: Page) -> None:
        """Its room is free; what it held is forgotten."""
        self._unlist(page)
        self._idle.pop(page, None)
        self._beginnings = {name: pages for name, pages in self._beginnings.items() if page not in pages}
        self._free[page.slot] = None


def _begins(ids: Sequence[int], beginning: Sequence[int]) -> bool:
    return list(ids[: len(beginning)]) == list(beginning)


def common_length(known: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(known), len(wanted))
    if list(known[:most]) == list(wanted[:most]):
        return most
    return next(i for i in range(most) if known[i] != wanted[i])
