"""The SQLite file: opening, checking, upgrading, and saying in one line what is wrong with it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exlchat.chat.model import clean_title
from exlchat.chat.store.backup import back_up, backups
from exlchat.chat.store.schema import MIGRATIONS
from exlchat.untrusted.files import UntrustedFileError, check_plain

APPLICATION_ID = 0x65786C63
"""Written into the file's header ("exlc"), so that another program's database is never taken for ours."""

BUSY_SECONDS = 5.0

_ROOM = 65536
"""Bytes: what the smallest of SQLite's files beside the database take."""


class StoreError(Exception):
    """The conversations cannot be read or written: one line that names the file, the reason and how to mend it."""


class LostFileError(StoreError):
    """The file that is open no longer lies at its path. What was read of it can still be read, until it is closed."""


class RefusedError(Exception):
    """What was asked makes no sense here, in one line; leaves this floor only as a `StoreError`."""


class MissingRowError(RefusedError):
    def __init__(self, what: str, ident: str) -> None:
        super().__init__(f"there is no {what} {ident}; it may have been removed by another program")


def open_database(path: Path | None, *, or_read: bool = False) -> sqlite3.Connection:
    """Open the file at `path` (made if missing, readable by its owner only), or a database in memory for `None`.

    The connection is in autocommit mode and may be used from any thread by one caller at a time. WAL lets other
    processes read while this one writes; `synchronous=FULL` makes a commit survive a power cut, not only a crash,
    for one fsync about three times a second while an answer is written.

    Where the disk is full even reading needs a file beside it; with `or_read` it is then opened without, for this
    program alone, and nothing can be written (`is_read_only`).

    Raises:
        StoreError: not writable, not a database, another program's, damaged, or of a newer exlchat.
    """
    try:
        return _opened(path, alone=False)
    except StoreError as error:
        if path is None or not or_read or not _disk_is_full(path, error.__cause__):
            raise
    # SQLite wants a file beside it for what programs tell each other. Alone it goes without, and reads the WAL too.
    return _opened(path, alone=True)


def is_read_only(database: sqlite3.Connection) -> bool:
    """Whether it could be opened for reading only, because the disk is full."""
    return bool(database.execute("PRAGMA query_only").fetchone()[0])


def _opened(path: Path | None, *, alone: bool) -> sqlite3.Connection:
    """With `alone` no other program can have it open, and nothing is written."""
    with explained(path):
        if path is not None:
            _make(path)
            _require_no_orphan(path)
        database = sqlite3.connect(
            path or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if alone:
                database.execute("PRAGMA locking_mode = EXCLUSIVE")
                database.execute("PRAGMA query_only = ON")
                _version(database, path)
                return database
            if path is None:
                # Else what is sorted there may go into a file of SQLite's own.
                database.execute("PRAGMA temp_store = MEMORY")
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("PRAGMA synchronous = FULL")
            # The first migration that needs titles is of a file that only knows texts.
            database.create_function("title_of", 1, lambda text: clean_title(text or ""), deterministic=True)
            _upgrade(database, path)
            _use_wal(database)
        except BaseException:
            database.close()
            raise
    return database


def is_damage(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, UnicodeDecodeError)


@contextmanager
def transaction(database: sqlite3.Connection, path: Path | None, *, write: bool) -> Iterator[None]:
    """All statements inside, or none of them.

    Raises:
        StoreError: the database refuses; nothing of the transaction is then on disk.
    """
    with explained(path):
        database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            # A full disk makes SQLite roll back by itself.
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


@contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Turns what SQLite and the file system raise into a `StoreError`."""
    name = str(path or "the database in memory")
    try:
        yield
    except sqlite3.Error as error:
        full = path is not None and _disk_is_full(path, error)
        cause = _CAUSES[sqlite3.SQLITE_FULL] if full else _cause(error)
        raise StoreError(f"{name}: {cause}{_newest_copy(error, path)}") from error
    except UnicodeDecodeError as error:
        # What is wrong with a damaged schema is said with pieces of it, which need not be text.
        raise StoreError(f"{name}: {_CAUSES[sqlite3.SQLITE_CORRUPT]}{_copy_beside(path)}") from error
    except RefusedError as error:
        raise StoreError(f"{name}: {error}") from None
    except UntrustedFileError as error:
        raise StoreError(str(error)) from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise StoreError(f"{name}: cannot be opened ({reason}); mend its permissions or set EXLCHAT_HOME") from error


def _disk_is_full(path: Path, error: BaseException | None) -> bool:
    """Whether an error comes of there being no room, which SQLite says of what it writes itself alone."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code not in _OF_NO_ROOM:
        return False
    try:
        return shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False


_OF_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)


def _make(path: Path) -> None:
    """The file, readable by its owner only, if there is none.

    One that is there is not opened: closing it would take the locks from under every connection that this process has
    to it (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    if path.exists():
        check_plain(path)
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _require_no_orphan(path: Path) -> None:
    """SQLite removes the WAL of an empty file, and with it what may be the only copy of what was said."""
    wal = Path(f"{path}-wal")
    if path.stat().st_size == 0 and wal.exists() and wal.stat().st_size > 0:
        damage = sqlite3.DatabaseError("the file is empty, and what was written to it last is beside it")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage


def _upgrade(database: sqlite3.Connection, path: Path | None) -> None:
    """Bring the file to the newest schema in one transaction; two programs that start at once take turns.

    A file that holds something is copied first; where that cannot be done, nothing is.
    """
    with transaction(database, path, write=False):
        version = _version(database, path)
    if version == len(MIGRATIONS):
        return
    with transaction(database, path, write=True):
        version = _version(database, path)
        if version and path is not None:
            back_up(path, f"schema-{version}")
        for number in range(version, len(MIGRATIONS)):
            for statement in MIGRATIONS[number]:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number + 1}")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _use_wal(database: sqlite3.Connection) -> None:
    """Switch the file to WAL. SQLite does not wait by itself while another program has just opened it, so we do."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _version(database: sqlite3.Connection, path: Path | None) -> int:
    """The schema of the file; 0 for an empty one."""
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    owner: int = database.execute("PRAGMA application_id").fetchone()[0]
    tables: int = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (tables or version) and owner != APPLICATION_ID:
        raise StoreError(f"{path}: is another program's database; move it away or set EXLCHAT_HOME to another folder")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: is of a newer exlchat (schema {version}, this program knows up to {len(MIGRATIONS)}); "
            "update exlchat, or set EXLCHAT_HOME to another folder"
        )
    return version


_CAUSES: dict[int, str] = {
    sqlite3.SQLITE_READONLY: "cannot be written (the file or its folder is read-only); mend its permissions",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; mend the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be opened; mend the permissions of the file and its folder",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and try again",
    sqlite3.SQLITE_NOTADB: "is not a conversation database, or its beginning is damaged; move it away and a new one is "
    "made, or let exlchat sessions check --repair save what can be read",
    sqlite3.SQLITE_CORRUPT: "is damaged; exlchat sessions check --repair saves what can be read",
    sqlite3.SQLITE_BUSY: f"another program has kept it busy for {BUSY_SECONDS:g} s; close that one and try again",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check the disk and its free space",
}


def _cause(error: sqlite3.Error) -> str:
    # The low byte of an extended code is the primary one: https://sqlite.org/rescode.html
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if str(error).startswith("Could not decode to UTF-8"):
        return "holds a text that is not UTF-8; exlchat sessions check --repair mends it"
    return _CAUSES.get(code, f"SQLite says: {error}")


def _newest_copy(error: sqlite3.Error, path: Path | None) -> str:
    return _copy_beside(path) if is_damage(error) else ""


def _copy_beside(path: Path | None) -> str:
    there = backups(path) if path is not None else []
    return f"; the newest copy is {there[0]}" if there else ""
