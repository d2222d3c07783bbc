"""The pages of one root on disk: what is there, read with all checks, written under their names."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from exlchat.engine.kv.disk.file import (
    MakeBuffer,
    PageDamagedError,
    PageLayout,
    PageName,
    StoredPage,
    read_ids,
    read_page,
    write_page,
)
from exlchat.engine.kv.disk.folder import PagesFolder, remove_file
from exlchat.engine.kv.disk.index import PageIndex

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""What says nothing about the file."""


@dataclass(frozen=True, slots=True)
class PartialPage:
    hash: bytes
    ids: tuple[int, ...]


class PageRoot:
    """Any thread may use it; one writes.

    Args:
        pages: the folder of all roots.
        root: 16 bytes.
        layout: the tensors of its pages.
        total: is told what is written and removed.
    """

    def __init__(self, pages: Path, root: bytes, layout: PageLayout, total: PagesFolder) -> None:
        self.index = PageIndex()
        self.folder = pages / root.hex()
        self._pages, self._root, self._layout, self._total = pages, root, layout, total
        self._lock = threading.Lock()
        self._damaged = 0
        self._pages_made = False

    @property
    def damaged(self) -> int:
        with self._lock:
            return self._damaged

    def read(self, name: PageName, make_buffer: MakeBuffer) -> StoredPage | None:
        """A page as `read_page` gives it; `None` when it cannot be read, or is damaged, and then removed."""
        try:
            return read_page(self.folder, self._root, self._layout, name, make_buffer)
        except (OSError, PageDamagedError) as error:
            self._forget(name, error)
            return None

    def partials(self, parent: bytes) -> tuple[PartialPage, ...]:
        found = []
        for name, known in self.index.partials(parent):
            ids = known if known is not None else self._read_ids(name)
            if ids is not None:
                found.append(PartialPage(name.hash, ids))
        return tuple(found)

    def touch(self, name: PageName, used: int) -> None:
        """Notes when a page was used, in ns."""
        try:
            os.utime(self.folder / str(name), ns=(used, used))
        except FileNotFoundError:
            self.index.drop(name)
        except OSError:
            # Where this is not allowed, files are not removed either, so it does not matter.
            return

    def write(self, page: StoredPage) -> None:
        """Writes a page, then removes the shorter ones that it replaces. Raises `OSError`."""
        try:
            name = self._write_once(page)
        except FileNotFoundError:
            # Another process may have removed the folder just then, because it was empty.
            name = self._write_once(page)
        self.index.add(name, page.ids)
        self._total.add(self._layout.file_bytes(name.tokens))
        for shorter in self.partials(page.parent):
            if len(shorter.ids) < len(page.ids) and page.ids[: len(shorter.ids)] == shorter.ids:
                old = PageName(page.parent, shorter.hash, len(shorter.ids))
                self.index.drop(old)
                self._remove(old)

    def _write_once(self, page: StoredPage) -> PageName:
        # What was said in a conversation can be told from its pages, so they are the user's only. The folder of all
        # pages is made once: where somebody removes it later, that is respected.
        if not self._pages_made:
            self._pages.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._pages_made = True
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return write_page(self.folder, self._root, self._layout, page)

    def _read_ids(self, name: PageName) -> tuple[int, ...] | None:
        try:
            ids = read_ids(self.folder, self._root, self._layout, name)
        except (OSError, PageDamagedError) as error:
            self._forget(name, error)
            return None
        self.index.add(name, ids)
        return ids

    def _forget(self, name: PageName, error: Exception) -> None:
        """A file that may not be read is not tried again; a damaged one is counted and removed."""
        if isinstance(error, OSError) and error.errno in _PASSING:
            return
        self.index.drop(name)
        if isinstance(error, PageDamagedError):
            with self._lock:
                self._damaged += 1
            self._remove(name)

    def _remove(self, name: PageName) -> None:
        path = self.folder / str(name)
        try:
            size = os.lstat(path).st_size
        except OSError:
            return
        if remove_file(path):
            self._total.remove(size)
