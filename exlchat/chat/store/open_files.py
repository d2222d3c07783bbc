"""Whether the files of an open database still lie where they did: who writes into others keeps nothing."""

from __future__ import annotations

import os
from pathlib import Path

from exlchat.chat.store.database import LostFileError

_BESIDE = ("-wal", "-shm")
_Identity = tuple[int, int] | None


class OpenFiles:
    """The file of a store and those that SQLite keeps beside it, by device and inode. To look takes microseconds."""

    def __init__(self, path: Path | None) -> None:
        """`path` is of a database that has just been opened; `None` for one in memory, which cannot be lost."""
        self._path = path
        # SQLite has followed the links in it.
        self._real = None if path is None else os.path.realpath(path)
        self._file = self._now("")
        self._beside = self._others()

    def require_file(self) -> None:
        """See that the path still leads to the open file.

        Raises:
            LostFileError: it does not; what is written from here on is gone when the program ends.
        """
        now = self._now("")
        if now == self._file:
            return
        what = "was removed or moved away" if now is None else "has been replaced by another file"
        where = "a new file" if now is None else "that file"
        raise LostFileError(
            f"{self._path}: {what} while it was open, and nothing more can be kept in it; "
            f"in the chat /save puts this conversation into {where}"
        )

    @property
    def some_beside_are_lost(self) -> bool:
        """Whether the WAL or the index of it is no longer there, so that other programs do not see what is in it."""
        now = self._others()
        # SQLite makes them with the first transaction.
        self._beside = tuple(new if old is None else old for old, new in zip(self._beside, now, strict=True))
        return now != self._beside

    @property
    def replaced(self) -> bool:
        """Whether another file lies where the open one was."""
        return self._now("") not in (self._file, None)

    def remove_beside(self) -> None:
        """Take the names of the WAL and its index away, if they are still those of the file that was open.

        SQLite would take them for those of whatever lies at the path by now, and write into that what is in them.

        Raises:
            OSError: that is not possible.
        """
        for suffix, known in zip(_BESIDE, self._beside, strict=True):
            if known is not None and self._now(suffix) == known:
                os.unlink(f"{self._real}{suffix}")

    def _others(self) -> tuple[_Identity, ...]:
        return tuple(self._now(suffix) for suffix in _BESIDE)

    def _now(self, suffix: str) -> _Identity:
        """A folder that can no longer be entered is as good as gone."""
        if self._real is None:
            return None
        try:
            there = os.stat(str(self._path) if not suffix else f"{self._real}{suffix}")
        except OSError:
            return None
        return there.st_dev, there.st_ino
