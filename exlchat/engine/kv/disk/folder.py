"""The folder of all pages on disk, a folder a root in it: how much lies there, and what goes when it is too much."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from exlchat.engine.kv.disk.file import SUFFIX, TEMPORARY_SUFFIX, PageName
from exlchat.engine.kv.disk.rates import RATES_FILE

PAGES = "pages"
"""In the cache folder."""

_ROOT = re.compile(r"[0-9a-f]{32}")
_LEFTOVER_SECONDS = 3600.0
"""A page is written within seconds; whoever began a temporary file so long ago is gone."""

_MANY_FILES = 1000


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a root.

    Args:
        path: where it lies.
        root: name of the root's folder.
        name: what its name tells, if it is a page as this version writes it.
        size: bytes.
        used: when it was last written or read, in ns.
    """

    path: str
    root: str
    name: PageName | None
    size: int
    used: int


class PagesFolder:
    """`folder` holds a folder for every root, and these hold files. Any thread may use it.

    Args:
        folder: all of it; it need not be there.
        own: name of the root's folder that stays, even when it is empty.
    """

    def __init__(self, folder: Path, own: str) -> None:
        self._folder = folder
        self._own = own
        self._lock = threading.Lock()
        self._files = self._bytes = self._unseen = 0

    @property
    def total(self) -> tuple[int, int]:
        """Files and bytes in all roots, as this process knows: 0 before the first `scan`."""
        with self._lock:
            return self._files, self._bytes

    def add(self, size: int) -> None:
        with self._lock:
            self._files, self._bytes, self._unseen = self._files + 1, self._bytes + size, self._unseen + size

    def remove(self, size: int) -> None:
        with self._lock:
            self._files, self._bytes = max(0, self._files - 1), max(0, self._bytes - size)

    def scan(self) -> list[FoundFile]:
        found = [file for root in self._roots() for file in _files_of(root)]
        with self._lock:
            self._files, self._bytes, self._unseen = len(found), sum(file.size for file in found), 0
        return found

    def make_room(self, size: int, cap: int) -> tuple[bool, list[FoundFile]]:
        """Removes what was not used for longest until `size` more bytes fit under the cap.

        Returns:
            Whether they fit, and what was removed.
        """
        with self._lock:
            # Other processes write here too, so it is looked at anew from time to time.
            known = self._bytes + size <= cap and self._unseen <= cap // 16
        if known:
            return True, []
        files, removed = self.scan(), []
        used = sum(file.size for file in files)
        # To look at many thousand files takes a second; not for every page.
        goal = cap - (cap // 64 if len(files) > _MANY_FILES else 0)
        if used + size > cap and size <= cap:
            for file in eviction_order(files):
                if used + size <= goal:
                    break
                if remove_file(file.path):
                    used -= file.size
                    self.remove(file.size)
                    removed.append(file)
            for root in {file.root for file in removed} - {self._own}:
                _remove_if_empty(self._folder / root)
        return used + size <= cap, removed

    def clear(self) -> None:
        """Removes the pages of all roots, and the folders that are empty then."""
        for file in self.scan():
            if remove_file(file.path):
                self.remove(file.size)
        for root in self._roots():
            _remove_if_empty(root)

    def tidy(self) -> None:
        """Removes what crashes left behind: old temporary files, and folders of other roots without any page.

        Takes the rights of other users away from the folder, which may have been made by hand.
        """
        with suppress(OSError):
            mode = stat.S_IMODE(self._folder.stat().st_mode)
            if mode & 0o077:
                self._folder.chmod(mode & 0o700)
        oldest = time.time() - _LEFTOVER_SECONDS
        for root in self._roots():
            for entry in _entries(root):
                with suppress(OSError):
                    if entry.name.endswith(TEMPORARY_SUFFIX) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)
            if root.name != self._own:
                _remove_if_empty(root)

    def _roots(self) -> list[Path]:
        return [Path(entry.path) for entry in _entries(self._folder) if _is_root(entry)]


def clear_pages(cache: Path) -> threading.Thread:
    """Removes the pages of all roots in `pages` of the cache folder, in a thread of its own, quietly."""

    def clear() -> None:
        PagesFolder(cache / PAGES, own="").clear()

    thread = threading.Thread(target=clear, name="remove pages", daemon=True)
    thread.start()
    return thread


def eviction_order(files: Sequence[FoundFile]) -> Iterator[FoundFile]:
    """What goes first, first: the least recently used, but no page before those that continue it.

    A page without those before it is of no use. So pages whose beginning is gone go before all others, a page counts
    as used when the last that continues it was, and the end of a conversation goes before its beginning.
    """
    useful = _with_beginnings(files)
    pages = {(file.root, file.name.hash): file for file in files if file.name is not None}
    chains: list[list[FoundFile]] = []
    seen: set[str] = set()
    for file in sorted(files, key=lambda file: (file.path in useful, file.used), reverse=True):
        chain: list[FoundFile] = []
        place: FoundFile | None = file
        while place is not None and place.path not in seen:
            seen.add(place.path)
            chain.append(place)
            place = pages.get((place.root, place.name.parent)) if place.name is not None else None
        chains.append(chain)
    for chain in reversed(chains):
        yield from chain


def remove_file(path: str | Path) -> bool:
    """Whether the file is gone now."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _with_beginnings(files: Sequence[FoundFile]) -> set[str]:
    """Paths of the pages that can be reached from their roots, and of files that are no pages of this version."""
    behind: dict[tuple[str, bytes], list[FoundFile]] = {}
    reached = []
    for file in files:
        if file.name is None:
            reached.append(file.path)
        else:
            behind.setdefault((file.root, file.name.parent), []).append(file)
    places = [(root, bytes.fromhex(root)) for root in {file.root for file in files}]
    while places:
        for file in behind.pop(places.pop(), ()):
            reached.append(file.path)
            if file.name is not None:
                places.append((file.root, file.name.hash))
    return set(reached)


def _files_of(root: Path) -> list[FoundFile]:
    found = []
    for entry in _entries(root):
        if not entry.name.endswith(SUFFIX):
            continue
        with suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                info = entry.stat(follow_symlinks=False)
                name = PageName.parse(entry.name)
                found.append(FoundFile(entry.path, root.name, name, info.st_size, info.st_mtime_ns))
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_root(entry: os.DirEntry[str]) -> bool:
    try:
        return _ROOT.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _remove_if_empty(root: Path) -> None:
    """Removes a root's folder that holds nothing, or nothing but its rates."""
    if {entry.name for entry in _entries(root)} <= {RATES_FILE}:
        with suppress(OSError):
            (root / RATES_FILE).unlink(missing_ok=True)
            root.rmdir()
