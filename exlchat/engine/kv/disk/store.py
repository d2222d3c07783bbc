"""Pages of keys and values on disk, found again by what they were computed from."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.kv.disk.counts import DiskCounts, Wanted
from exlchat.engine.kv.disk.file import MakeBuffer, PageLayout, PageName, StoredPage
from exlchat.engine.kv.disk.folder import PAGES, PagesFolder
from exlchat.engine.kv.disk.queue import BackgroundQueue
from exlchat.engine.kv.disk.rates import RATES_FILE, Rates
from exlchat.engine.kv.disk.root import PageRoot, PartialPage
from exlchat.engine.kv.hash import HASH_BYTES
from exlchat.ext.kv_formats import PAGE_TOKENS

_THREADS = 4
_AHEAD = 2 * _THREADS
_QUEUE_BYTES = 512 * 2**20
_FULL = {errno.ENOSPC, errno.EDQUOT}


class PageFiles:
    """A store of pages under one root, `<cache>/pages/<root>/`, bounded together with those of all other roots.

    Opening returns at once: a background thread lists the folder and writes. Any thread may call anything. No method
    raises because of what lies on the disk, or because of what the disk refuses. Two processes may use one folder; a
    page that the other one writes is found after the next opening.

    Args:
        cache: the cache folder. Nothing is made in it before the first page is written.
        root: 16 bytes for everything besides ids that changes a page (`pages.hash.root_hash`).
        layout: the tensors of its pages.
        cap: bytes of all pages in `<cache>/pages`, held from the opening on; with 0 the store is off: it finds nothing
            and takes nothing.
        make_buffer: where pages are read into: pinned memory makes their way to a GPU shorter.
        queue_bytes: how much may wait to be written.

    Raises:
        ValueError: the root is not 16 bytes.
    """

    def __init__(
        self,
        cache: Path,
        root: bytes,
        layout: PageLayout,
        cap: int,
        *,
        make_buffer: MakeBuffer | None = None,
        queue_bytes: int = _QUEUE_BYTES,
    ) -> None:
        if len(root) != HASH_BYTES:
            raise ValueError(f"a root has {HASH_BYTES} bytes, not {len(root)}")
        self._layout, self._cap = layout, cap
        self._make_buffer = make_buffer or _plain_memory
        self._all = PagesFolder(cache / PAGES, root.hex())
        self._own = PageRoot(cache / PAGES, root, layout, self._all)
        self._rates = Rates(self._own.folder / RATES_FILE)
        self._scanned = threading.Event()
        self._lock = threading.Lock()
        self._waiting: set[bytes] = set()
        self._counted = dict.fromkeys(("written", "read", "skipped", "evicted"), 0)
        self._trouble: str | None = None
        self._queue = BackgroundQueue(self._open, self._work, self._failed, queue_bytes) if cap > 0 else None

    @property
    def on(self) -> bool:
        return self._queue is not None

    @property
    def trouble(self) -> str | None:
        """Why nothing is written any more in this run, and how to mend it: one line."""
        return self._trouble

    @property
    def counts(self) -> DiskCounts:
        files, size = self._all.total
        with self._lock:
            return DiskCounts(files=files, bytes=size, damaged=self._own.damaged, **self._counted)

    # What is there, and reading it.

    def full(self, page: bytes) -> bool:
        """Whether a page of 256 ids with this hash is on disk, as far as its name tells."""
        name = self._find(page)
        return name is not None and name.tokens == PAGE_TOKENS

    def partials(self, parent: bytes) -> tuple[PartialPage, ...]:
        """The pages of fewer than 256 ids behind a parent. Ids not yet known are read from the files and checked."""
        if not self.on:
            return ()
        self._scanned.wait()
        return self._own.partials(parent)

    def read(self, page: bytes) -> StoredPage | None:
        """The page with this hash, checked, or `None`: it is not there, or it was damaged and has been removed."""
        return self._read(page, time.time_ns())

    def read_many(self, hashes: Iterable[bytes]) -> Generator[StoredPage | None, None, None]:
        """As `read`, for many, in their order; up to 8 are read ahead by four threads.

        All count as used now, each a little earlier than the one before it. Closing the iterator stops reading.
        """
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="read page") as threads:
            now, numbered = time.time_ns(), enumerate(hashes)
            running: deque[Future[StoredPage | None]] = deque()
            try:
                while True:
                    for index, page in islice(numbered, _AHEAD - len(running)):
                        running.append(threads.submit(self._read, page, now - 1000 * index))
                    if not running:
                        return
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()

    # Writing.

    def wants(self, page: bytes, tokens: int) -> Wanted:
        """What `put` would do with the page of this hash and so many ids; neither waits nor touches a file."""
        if self._queue is None:
            return Wanted.NO
        with self._lock:
            waits = page in self._waiting
        if waits or self._own.index.find(page) is not None:
            return Wanted.HERE
        size = self._layout.file_bytes(tokens)
        takes = self._trouble is None and size <= self._cap and self._queue.has_room(size)
        return Wanted.YES if takes else Wanted.NO

    def used(self, pages: Iterable[bytes]) -> None:
        """Leaves it to the background thread to note that these were used; those that turn out gone are forgotten."""
        names = [name for page in pages if (name := self._own.index.find(page)) is not None]
        if self._queue is not None and names:
            self._queue.offer(names, 0)

    def skip(self, pages: int) -> None:
        self._count("skipped", pages)

    def put(self, page: StoredPage) -> bool:
        """Leaves a page to the background thread, or only marks it as used when it is on disk already.

        The tensors must not change from now on. When a page replaces shorter ones (the same parent, and their ids are
        the beginning of its ids), these are removed once it is written.

        Returns:
            Whether it was taken. It is not when too much waits already, after `trouble` and when the store is off.

        Raises:
            ValueError: the page does not fit the layout.
        """
        self._layout.check(page)
        name = PageName.of(page)
        if self._queue is None:
            return False
        if self._own.index.find(name.hash) == name:
            self.used([name.hash])
            return True
        with self._lock:
            if name.hash in self._waiting:
                return True
            self._waiting.add(name.hash)
        if self._trouble is None and self._queue.offer(page, self._layout.file_bytes(name.tokens)):
            return True
        with self._lock:
            self._waiting.discard(name.hash)
        self._count("skipped")
        return False

    def flush(self, timeout: float) -> bool:
        """Waits until what was put is written, at most so many seconds; whether it is. Remembers the rates too."""
        if self._queue is None:
            return True
        return self._end(self._queue.flush, timeout)

    def close(self, timeout: float) -> bool:
        """As `flush`; after it nothing is written, what was not written in time is lost. Reading still works."""
        if self._queue is None:
            return True
        return self._end(self._queue.close, timeout)

    # What pays.

    def note_prefill(self, tokens: int, seconds: float) -> None:
        self._rates.note_prefill(tokens, seconds)

    def pays(self, size: int, tokens: int) -> bool:
        return self._rates.pays(size, tokens)

    def page_bytes(self, tokens: int = PAGE_TOKENS) -> int:
        return self._layout.file_bytes(tokens)

    # In any thread.

    def _end(self, wait: Callable[[float], bool], timeout: float) -> bool:
        # First the rates, for a caller that is gone before a slow disk is done; again where the folder is new now.
        self._rates.save()
        done = wait(timeout)
        self._rates.save()
        return done

    def _find(self, page: bytes) -> PageName | None:
        if not self.on:
            return None
        self._scanned.wait()
        return self._own.index.find(page)

    def _read(self, page: bytes, used: int) -> StoredPage | None:
        name = self._find(page)
        if name is None:
            return None
        stored = None
        self._rates.start_read()
        try:
            stored = self._own.read(name, self._make_buffer)
        except (MemoryError, RuntimeError):
            # There is no memory for it now (pinned memory says so with RuntimeError), and the page can be computed.
            return None
        finally:
            self._rates.end_read(self._layout.file_bytes(name.tokens) if stored is not None else 0)
        if stored is not None:
            self._own.touch(name, used)
            self._count("read")
        return stored

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counted[what] += number

    # In the background thread.

    def _open(self) -> None:
        self._own.index.scan(self._own.folder)
        self._scanned.set()
        self._all.tidy()
        self._all.scan()
        # What was allowed to lie there before may be more than what is now.
        self._make_room(0)

    def _failed(self, error: Exception) -> None:
        self._trouble = self._explain(error)
        # A prompt that waits for the list goes without.
        self._scanned.set()

    def _work(self, item: StoredPage | Sequence[PageName]) -> None:
        if not isinstance(item, StoredPage):
            for known in item:
                self._own.touch(known, time.time_ns())
            return
        name = PageName.of(item)
        try:
            # A page may have been put before the folder was listed.
            if self._own.index.find(name.hash) == name:
                self._own.touch(name, time.time_ns())
            elif self._trouble is None and self._make_room(self._layout.file_bytes(name.tokens)):
                self._own.write(item)
                self._count("written")
            else:
                self._count("skipped")
        except OSError as error:
            self._trouble = self._explain(error)
            self._count("skipped")
        except (MemoryError, RuntimeError):
            # A tensor that is not contiguous is copied for writing.
            self._count("skipped")
        finally:
            with self._lock:
                self._waiting.discard(name.hash)

    def _make_room(self, size: int) -> bool:
        fits, removed = self._all.make_room(size, self._cap)
        for file in removed:
            if file.root == self._own.folder.name and file.name is not None:
                self._own.index.drop(file.name)
        self._count("evicted", len(removed))
        return fits

    def _explain(self, error: Exception) -> str:
        if isinstance(error, OSError):
            reason = (error.strerror or type(error).__name__).lower()
            mend = "free space, or allow less" if error.errno in _FULL else "mend its permissions"
        else:
            reason = " ".join([type(error).__name__, *str(error).split("\n")[:1]]).strip()
            mend = "report this"
        return f"{self._own.folder}: pages cannot be kept on disk ({reason}); {mend}, and start again"


def _plain_memory(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)
