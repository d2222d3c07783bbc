"""Pages of the pool that outlive the program: which go to the disk, and which come back before a prompt is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.disk.counts import Wanted
from exlchat.engine.kv.disk.file import PageLayout, PageTensor, StoredPage
from exlchat.engine.kv.disk.store import PageFiles
from exlchat.engine.kv.hash import page_hash
from exlchat.engine.kv.pool import Known, Page, PagePool, PoolFullError, common_length
from exlchat.engine.kv.tensors import PageStore
from exlchat.engine.placement import NO_MEMORY, is_shortage
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.info import CLOSE_SECONDS, DiskReport

# Fewer tokens are computed in less time than a file is found and opened.
_FEWEST = 32


class PageArchive:
    """The disk beside one pool. Only what pays is written or read: where reading is faster than computing.

    Args:
        pool, store: of one model.
        files: the disk, with the pool's root and `page_layout` of the store.
        cap: bytes that it may take there, for the report.
    """

    def __init__(self, pool: PagePool, store: PageStore, files: PageFiles, cap: int) -> None:
        self._pool = pool
        self._store = store
        self._files = files
        self._cap = cap
        self._restored = 0

    @property
    def report(self) -> DiskReport:
        counts = self._files.counts
        return DiskReport(
            files=counts.files,
            bytes=counts.bytes,
            most_bytes=self._cap,
            written=counts.written,
            restored_tokens=self._restored,
            damaged=counts.damaged,
            trouble=self._files.trouble,
            skipped=counts.skipped,
        )

    def restore(self, ids: Sequence[int], most: int, stopped: Callable[[], bool]) -> None:
        """Brings what the disk holds of `ids[:most]`, behind what the pool holds, into the pool, while there is memory.

        Args:
            stopped: asked before every page; what has come by then stays.
        """
        known = self._pool.find(ids, most)
        wanted = self._wanted(known, ids, most)
        tokens = sum(rows for _, rows in wanted) - known.rows
        if tokens < _FEWEST or not self._files.pays(sum(self._files.page_bytes(rows) for _, rows in wanted), tokens):
            return
        held = list(known.pages)
        for page in held:
            self._pool.hold(page)
        stored_pages = self._files.read_many([name for name, _ in wanted])
        try:
            for stored in stored_pages:
                if stored is None or stopped():
                    break
                held.append(self._take_in(stored, held[-1] if held else None))
        except PoolFullError:
            pass  # what has come so far is as good as it gets
        except NO_MEMORY as error:
            if not is_shortage(error):
                raise
        finally:
            stored_pages.close()
            self._pool.release(held)

    def keep(self, pages: Sequence[Page]) -> None:
        """Writes those pages of a sequence that are not on the disk yet, in the background, from its beginning.

        Behind the first one that is not taken nothing is written: without it the rest would not be found. Nor is what
        goes beyond the cap, for which its own beginning would be removed, turn after turn.
        """
        if not self.pays(PAGE_TOKENS):
            # The head of a file costs a shorter page more a token, so that none pays.
            return
        here, size = [], 0
        for number, page in enumerate(pages):
            tokens = len(page.ids)
            size += self._files.page_bytes(tokens)
            if size > self._cap:
                break
            if tokens < _FEWEST or not (page.full or self._files.pays(self._files.page_bytes(tokens), tokens)):
                continue
            name = page.hash or page_hash(page.parent, page.ids)
            # Asked before the page is copied from the device, which takes far longer than finding its name.
            wanted = self._files.wants(name, tokens)
            if wanted is Wanted.HERE:
                here.append(name)
            elif wanted is Wanted.NO or not self._put(page, tokens):
                if self._files.trouble is None:
                    self._files.skip(len(pages) - number)
                break
        self._files.used(here)

    def note_prefill(self, tokens: int, seconds: float) -> None:
        self._files.note_prefill(tokens, seconds)

    def pays(self, tokens: int) -> bool:
        return self._files.pays(tokens // PAGE_TOKENS * self._files.page_bytes(), tokens)

    def flush(self, seconds: float) -> bool:
        """Waits for what is being written, that long at most; whether it is done."""
        return self._files.flush(seconds)

    def close(self) -> None:
        self._files.close(CLOSE_SECONDS)

    def _wanted(self, known: Known, ids: Sequence[int], most: int) -> list[tuple[bytes, int]]:
        """Pages on the disk that go on where the pool ends: their hashes, and how many of their tokens fit."""
        wanted: list[tuple[bytes, int]] = []
        at = len(known.pages) * PAGE_TOKENS
        parent = known.pages[-1].end if known.pages else self._pool.root
        while at + PAGE_TOKENS <= most:
            name = page_hash(parent, ids[at : at + PAGE_TOKENS])
            if not self._files.full(name):
                break
            wanted.append((name, PAGE_TOKENS))
            parent, at = name, at + PAGE_TOKENS
        best, rows = None, 0 if wanted else known.rows
        for candidate in self._files.partials(parent):
            same = common_length(candidate.ids, ids[at:most])
            if same > rows:
                best, rows = candidate.hash, same
        return wanted if best is None else [*wanted, (best, rows)]

    def _put(self, page: Page, tokens: int) -> bool:
        try:
            tensors = self._store.read(page.slot, tokens)
        except NO_MEMORY as error:
            if not is_shortage(error):
                raise
            return False
        return self._files.put(StoredPage(page.parent, tuple(page.ids), tensors))

    def _take_in(self, stored: StoredPage, before: Page | None) -> Page:
        page = self._pool.take(before)
        try:
            self._store.write(page.slot, stored.tensors)
        except BaseException:
            self._pool.release([page])
            raise
        self._pool.extend(page, stored.parent, stored.ids)
        self._restored += len(stored.ids)
        return page


def open_archive(cache: KVCache, folder: Path, most_bytes: int) -> PageArchive:
    """The disk beside a cache.

    Args:
        folder: the cache folder of the program; pages lie in `pages` under it.
        most_bytes: of pages of all models there.

    Raises:
        ModelError: no memory for the cache.
    """
    store = cache.memory.whole
    make_buffer = _pinned_memory if cache.on_gpu else None
    files = PageFiles(folder, cache.pool.root, page_layout(store), most_bytes, make_buffer=make_buffer)
    return PageArchive(cache.pool, store, files, most_bytes)


def page_layout(store: PageStore) -> PageLayout:
    names = ("keys", "values", "key_scales", "value_scales")
    return PageLayout(
        tuple(
            PageTensor(name, part.dtype, store.layers, store.heads, part.shape[4])
            for name, part in zip(names, store.cards[0], strict=False)
        )
    )


def _pinned_memory(size: int) -> Tensor:
    """uint8 `[size]` from which a GPU copies by itself."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
