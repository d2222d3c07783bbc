"""Copies of the database beside it, made before anything is done to it that could go wrong."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

KEPT = 3
BUSY_SECONDS = 5.0
_MARK = ".backup-"


def back_up(path: Path, why: str) -> Path:
    """Copy the whole database, what is still in its WAL too, to `<name>.backup-<time>-<why>` beside it.

    The copy gets its name when it is whole and on disk, so that there is never half a one. The newest `KEPT` stay.

    Raises:
        sqlite3.Error: the copy cannot be written.
        OSError: the same.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        # A connection of its own: one that writes cannot be copied from, and a reader sees what is committed.
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(temporary)) as copy,
        ):
            source.backup(copy, progress=_until(time.monotonic() + BUSY_SECONDS))
            # The copy would open in WAL mode, and leave files of its own wherever it is looked at.
            copy.execute("PRAGMA journal_mode = DELETE")
        with open(temporary, "rb") as whole:
            os.fsync(whole.fileno())
        # Microseconds keep two programs that start at once apart.
        target = path.with_name(f"{path.name}{_MARK}{datetime.now():%Y%m%d-%H%M%S-%f}-{why}")
        os.rename(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    for old in backups(path)[KEPT:]:
        old.unlink(missing_ok=True)
    return target


def backups(path: Path) -> list[Path]:
    """The copies there are, newest first."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}{_MARK}*"), key=lambda file: file.name, reverse=True)


def _until(deadline: float) -> Callable[[int, int, int], object]:
    """Python goes on for ever while another program keeps the database busy; this ends it."""

    def look(status: int, _remaining: int, _pages: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise OSError(errno.EBUSY, "another program keeps the database busy")

    return look
