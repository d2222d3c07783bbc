"""Which pages of one root are on disk, as the names of their files say."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from exlchat.engine.kv.disk.file import PageName
from exlchat.ext.kv_formats import PAGE_TOKENS


class PageIndex:
    """Names in memory, and the ids of partly filled pages once they are known. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[bytes, PageName] = {}
        self._partials: dict[bytes, dict[bytes, PageName]] = {}
        self._ids: dict[bytes, tuple[int, ...]] = {}

    def scan(self, folder: Path) -> None:
        """Adds what lies in the folder. Only names are listed, no file is touched; no folder is an empty one."""
        try:
            with os.scandir(folder) as entries:
                names = [name for entry in entries if (name := PageName.parse(entry.name)) is not None]
        except OSError:
            return
        for name in names:
            self.add(name)

    def add(self, name: PageName, ids: tuple[int, ...] | None = None) -> None:
        """A file is there; `ids` when they are known to be right."""
        with self._lock:
            self._names[name.hash] = name
            if name.tokens < PAGE_TOKENS:
                self._partials.setdefault(name.parent, {})[name.hash] = name
                if ids is not None:
                    self._ids[name.hash] = ids

    def drop(self, name: PageName) -> None:
        with self._lock:
            if self._names.get(name.hash) == name:
                del self._names[name.hash]
                self._ids.pop(name.hash, None)
            siblings = self._partials.get(name.parent, {})
            if siblings.get(name.hash) == name:
                del siblings[name.hash]
                if not siblings:
                    del self._partials[name.parent]

    def find(self, page: bytes) -> PageName | None:
        with self._lock:
            return self._names.get(page)

    def partials(self, parent: bytes) -> tuple[tuple[PageName, tuple[int, ...] | None], ...]:
        """The pages of fewer than 256 ids behind a parent, with their ids where these are known."""
        with self._lock:
            found = self._partials.get(parent, {}).values()
            return tuple((name, self._ids.get(name.hash)) for name in found)
