"""The open file of a store: one connection, one lock, transactions; whether it still lies where it did, and who writes.

Who is writing an answer right now has a locked file, which the system unlocks when the process dies. A process id can
be taken by another process and a clock can jump; a lock can do neither.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from exlchat import paths
from exlchat.chat.store import database, statements
from exlchat.chat.store.database import LostFileError

if TYPE_CHECKING:
    import filelock

_YOUNG_SECONDS = 3600.0
_BESIDE = ("-wal", "-shm")
_Identity = tuple[int, int] | None
_P = ParamSpec("_P")
_R = TypeVar("_R")


class StoreFile:
    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time, or_read: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._writer = Writer(path)
        self._db = database.open_database(path, or_read=or_read)
        self._files = OpenFiles(path)
        self._seen_version = self._data_version()

    @property
    def is_kept(self) -> bool:
        """Whether it lies on a disk; else it goes with the program, and so must all that is made of it."""
        return self.path is not None

    def changed_elsewhere(self) -> bool:
        """Whether another connection, as another program has, has written since this was asked last.

        It costs microseconds, and never waits for a write of this one: then nothing is known yet.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            version = self._data_version()
        finally:
            self._lock.release()
        changed = version != self._seen_version
        self._seen_version = version
        return changed

    def _data_version(self) -> int:
        with database.explained(self.path):
            version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def close(self) -> None:
        """Let go of the file; every later call raises `StoreError`."""
        with self._lock, database.explained(self.path):
            replaced = self._files.replaced
            if replaced:
                self._complete_lost_file()
            self._db.close()
            if replaced:
                self._files.remove_beside()
            self._writer.leave()

    def recover(self) -> int:
        """Make answers whose writer has died `partial` (without any text: remove them). Returns how many were kept."""
        with self._transaction(write=False) as db:
            waiting: list[tuple[str, str]] = db.execute("SELECT message_id, writer FROM answer_in_progress").fetchall()
        with database.explained(self.path):
            dead = [message_id for message_id, writer in waiting if not self._writer.is_alive(writer)]
        if not dead:
            return 0
        with self._transaction() as db:
            return sum([statements.recover_answer(db, message_id) for message_id in dead])

    def require_file(self) -> None:
        """See that what is written is kept.

        Raises:
            LostFileError: the file was removed or replaced since it was opened.
        """
        self._files.require_file()

    def _go_on_with(self, fill: Callable[[sqlite3.Connection], _R]) -> _R:
        """Leave the open file for the one that lies at the path now, made if there is none, once it is filled.

        Raises:
            StoreError: that cannot be done; the store is as it was.
        """
        if self.path is not None:
            paths.ensure_folder(self.path.parent)
        with self._lock, database.explained(self.path):
            self._complete_lost_file()
            self._files.remove_beside()
        new = database.open_database(self.path)
        try:
            with database.transaction(new, self.path, write=True):
                filled = fill(new)
        except BaseException:
            new.close()
            raise
        with self._lock, database.explained(self.path):
            self._writer.leave()
            self._db.close()
            self._db, self._files = new, OpenFiles(self.path)
        return filled

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """What is read of a lost file is all that there is of it; nothing is written into one."""
        with self._lock:
            if write:
                self._files.require_file()
                if self._files.some_beside_are_lost:
                    self._open_again()
            with database.transaction(self._db, self.path, write=write):
                yield self._db
            if write:
                # What came between the two looks is not said to be kept.
                self._files.require_file()

    def _complete_lost_file(self) -> None:
        """Have the file that was open, wherever it is now, hold what is still in its WAL."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _open_again(self) -> None:
        """Bring what is in a WAL that has no name any more into the file, and go on with one that others see too.

        Raises:
            StoreError: another program has begun to write meanwhile.
        """
        with database.explained(self.path):
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise LostFileError(
                    f"{self.path}: the files beside it, -wal and -shm, were removed while it was open, and another "
                    "program uses it; close that one and try again"
                )
            self._db.close()
            self._db = database.open_database(self.path)
            self._files = OpenFiles(self.path)


def new_id() -> str:
    return uuid.uuid4().hex


def reads(work: Callable[Concatenate[sqlite3.Connection, _P], _R]) -> Callable[Concatenate[StoreFile, _P], _R]:
    """`work` as a method of a store, in a transaction of its own that reads."""
    return _method(work, write=False)


def writes(work: Callable[Concatenate[sqlite3.Connection, _P], _R]) -> Callable[Concatenate[StoreFile, _P], _R]:
    """`work` as a method of a store, in a transaction of its own that writes."""
    return _method(work, write=True)


def _method(
    work: Callable[Concatenate[sqlite3.Connection, _P], _R], *, write: bool
) -> Callable[Concatenate[StoreFile, _P], _R]:
    def method(self: StoreFile, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._transaction(write=write) as db:
            return work(db, *args, **kwargs)

    functools.update_wrapper(method, work)
    return method


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
            # Only an answer needs it, one of another process too.
            import filelock

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
        import filelock

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
        if self._lock is not None:
            self._lock.release()
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock = None

    def _file(self, name: str) -> Path | None:
        return None if self._database is None else self._database.with_name(f"{self._database.name}.writer-{name}")
