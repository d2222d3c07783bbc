"""Which files there are to be named in a message: those below a folder, or of the folder whose name is typed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from exlchat.app.composer.file_mentions import path_of

_MOST_FILES = 20_000
_MOST_SECONDS = 2.0
_FRESH_SECONDS = 10.0
_STREWN = 3
_LEFT_OUT = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "target", "dist", "build"})
"""Folders, beside the hidden ones, whose files somebody else has made; typed to the end, their names are found."""


class FileNames:
    """Looks below one folder; what it has found is looked through again for ten seconds. Of any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: list[str] = []
        self._looked: float | None = None
        self._looking = threading.Lock()

    def having(self, typed: str, limit: int) -> list[str]:
        """Names for what is typed, the best first; folders end in a slash."""
        head, _, last = typed.rpartition("/")
        if typed.startswith(("/", "~", "../", "./")):
            return _in_folder(path_of(head or "/", self.folder), f"{head}/", last)[:limit]
        letters = typed.casefold()
        ranked = sorted((rank, name) for name in self._all() if (rank := _rank(name, letters)) is not None)
        # Letters strewn over a name are many names' letters: they count where nothing else does.
        best = [name for rank, name in ranked if rank[0] < _STREWN]
        found = best or [name for _, name in ranked]
        if head and not found:
            found = _in_folder(self.folder / head, f"{head}/", last)
        return found[:limit]

    def _all(self) -> list[str]:
        with self._looking:
            if self._looked is None or time.monotonic() - self._looked > _FRESH_SECONDS:
                self._names = _below(self.folder)
                self._looked = time.monotonic()
            return self._names


def _rank(name: str, letters: str) -> tuple[int, int, str] | None:
    """The lower the better; `None` where the name has not these letters in this order."""
    folded = name.casefold()
    base = folded.rpartition("/")[2]
    if base.startswith(letters):
        kind = 0
    elif letters in base:
        kind = 1
    elif letters in folded:
        kind = 2
    else:
        rest = iter(folded)
        if not all(letter in rest for letter in letters):
            return None
        kind = _STREWN
    return kind, len(name), name


def _below(folder: Path) -> list[str]:
    names: list[str] = []
    end = time.monotonic() + _MOST_SECONDS
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _LEFT_OUT)
        base = os.path.relpath(here, folder)
        prefix = "" if base == "." else f"{base}/"
        names += (f"{prefix}{one}" for one in sorted(files) if not one.startswith(".") and _typable(one))
        if len(names) >= _MOST_FILES or time.monotonic() > end:
            break
    return names[:_MOST_FILES]


def _in_folder(folder: Path, prefix: str, begun: str) -> list[str]:
    begun = begun.casefold()
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") and not begun.startswith(".")
                if entry.name.casefold().startswith(begun) and not hidden and _typable(entry.name):
                    found.append(f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}")
                if len(found) >= _MOST_FILES:
                    break
    except (OSError, ValueError):
        return []
    return sorted(found)


def _typable(name: str) -> bool:
    """Names that a line of text can hold: no control characters, no quotation mark, nothing that is not UTF-8."""
    return name.isprintable() and '"' not in name
