"""Who is writing an answer right now: a locked file per process, which the system unlocks when the process dies.

A process id can be taken by another process and a clock can jump; a lock can do neither.
"""

from __future__ import annotations

import contextlib
import glob
import time
import uuid
from pathlib import Path

import filelock

_YOUNG_SECONDS = 3600.0


class Writer:
    """One process that writes answers into the database at `database` (`None`: in memory, so nobody else can ask)."""

    def __init__(self, database: Path | None) -> None:
        self.name = uuid.uuid4().hex
        self._database = database
        self._lock: filelock.BaseFileLock | None = None

    def announce(self) -> None:
        """Take the lock; needed once, before the first answer.

        Raises:
            OSError: the lock file cannot be made.
        """
        file = self._file(self.name)
        if self._lock is None and file is not None:
            lock = filelock.FileLock(file, mode=0o600, thread_local=False)
            lock.acquire(blocking=False)
            self._lock = lock

    def is_alive(self, name: str) -> bool:
        """Whether the writer `name` still runs; the lock file of a dead one is removed."""
        if name == self.name:
            return True
        file = self._file(name)
        if file is None or not file.exists():
            return False
        probe = filelock.FileLock(file, mode=0o600, thread_local=False)
        try:
            probe.acquire(blocking=False)
        except filelock.Timeout:
            return True
        probe.release()
        file.unlink(missing_ok=True)
        return False

    def sweep(self) -> None:
        """Remove the lock files of writers that died without an answer in progress, which nobody else asks about.

        Young ones stay: one that was just made may not be locked yet.

        Raises:
            OSError: a file cannot be looked at.
        """
        if self._database is None:
            return
        mark = f"{self._database.name}.writer-"
        for file in self._database.parent.glob(f"{glob.escape(mark)}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - file.stat().st_mtime > _YOUNG_SECONDS:
                    self.is_alive(file.name.removeprefix(mark))

    def leave(self) -> None:
        """Give the lock back and remove its file."""
        if self._lock is not None:
            self._lock.release()
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock = None

    def _file(self, name: str) -> Path | None:
        return None if self._database is None else self._database.with_name(f"{self._database.name}.writer-{name}")
