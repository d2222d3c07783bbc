"""What is left in a database that SQLite no longer reads goes into a new file; the damaged one stays beside it.

Which rows are ours is told by what they hold: nothing says any more what belongs to what.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

from exlchat.chat.repair.check import Problem, check
from exlchat.chat.repair.sqlite_pages import PageRecord, Pages
from exlchat.chat.store.database import StoreError, explained, open_database, transaction
from exlchat.chat.store.schema import CHANGE, CONVERSATION, MESSAGE, Column, Value
from exlchat.untrusted.files import NoSuchFileError, open_plain

_LONGEST_WORD = 40
"""Characters of an id, a role or a status."""

Row = dict[str, Value]
_MARK = ".damaged-"
_PENDING_BYTE = 0x40000000
_LOCKED_BYTES = 512
"""Where SQLite's locks on a file lie: https://sqlite.org/lockingv3.html. Whoever has it open holds one of them."""


@dataclass(frozen=True, slots=True)
class DatabaseFiles:
    """A database and its WAL as they lay there before SQLite opened them.

    Closing it, SQLite writes the WAL into the file and removes it: with what it did not read, and over what was cut.
    """

    base: bytes
    wal: bytes


def found_at(path: Path) -> DatabaseFiles:
    """The two files.

    Raises:
        StoreError: they cannot be read.
    """
    wal = wal_of(path)
    with explained(path):
        return DatabaseFiles(whole(path), whole(wal))


def salvage(path: Path, found: DatabaseFiles) -> list[Problem]:
    """Put what can be read of the file at `path` into a new one in its place; what was done, in lines.

    `found` is what lay there when it had not been opened yet.

    The damaged file stays beside it as `<name>.damaged-<time>`, with its WAL. Until the new one is whole and on disk
    nothing is touched.

    Raises:
        StoreError: nothing can be read, another program has it open, or there is no room for the new file.
    """
    with explained(path), _alone(path):
        saved = collect(Pages(found.base, found.wal).records())
        if not saved.messages and not saved.conversations:
            raise StoreError(f"{path}: nothing of it can be read any more; restore a copy, or move it away")
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        new = Path(temporary)
        try:
            mended = _written(new, saved)
            kept = _set_aside(path, found.wal)
            os.replace(new, path)
        except BaseException:
            for one in (new, *_companions(new)):
                one.unlink(missing_ok=True)
            raise
        _on_disk(path.parent)
    return [Problem(_told(saved, kept), repaired=True), *mended]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else has the file open, or opens it, meanwhile."""
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED_BYTES, _PENDING_BYTE)
        except BlockingIOError:
            raise StoreError(f"{path}: another program has it open; close that one and try again") from None
        # Closing the file gives the lock back.
        yield


def _written(new: Path, saved: Saved) -> list[Problem]:
    """A database of what was saved, mended; what was mended."""
    with closing(open_database(new)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        with transaction(db, new, write=True):
            _insert(db, saved)
        db.execute("PRAGMA ignore_check_constraints = OFF")
        mended = check(db, None, repair=True)
        # It is to be one file when it takes its place.
        db.execute("PRAGMA journal_mode = DELETE")
    with new.open("rb") as whole:
        os.fsync(whole.fileno())
    return mended


def _insert(db: sqlite3.Connection, saved: Saved) -> None:
    for row in sorted(saved.conversations.values(), key=_place):
        _put(db, "conversation", CONVERSATION, row)
    time = 0.0
    for row in sorted(saved.messages.values(), key=_place):
        # Of one that was cut there is no time; it was written after the one before it.
        written = row["created_at"]
        time = float(written) if isinstance(written, int | float) else time
        _put(db, "message", MESSAGE, {**row, "created_at": time, "status": row["status"] or "partial"})
    db.executemany("INSERT OR IGNORE INTO tag VALUES (?, ?)", sorted(saved.tags))
    names = [column.name for column in CHANGE]
    for _, values in sorted(saved.changes.items()):
        _put(db, "change", CHANGE, dict(zip(names, values, strict=True)))


def _place(row: Row) -> tuple[int, str]:
    """Messages are in the order in which they were written."""
    rowid = row["rowid"]
    return (rowid if isinstance(rowid, int) else 0), str(row["id"])


def _put(db: sqlite3.Connection, table: str, columns: Sequence[Column], row: Row) -> None:
    names = ", ".join(column.name for column in columns)
    values = [column.least if row[column.name] is None else row[column.name] for column in columns]
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})", values)


def _set_aside(path: Path, wal: bytes) -> Path:
    """Give the damaged file a name that says so, and then take its WAL away: it must not meet the new file."""
    kept = path.with_name(f"{path.name}{_MARK}{datetime.now():%Y%m%d-%H%M%S-%f}")
    for old, new in zip((path, *_companions(path)), (kept, *_companions(kept)), strict=True):
        if old.exists():
            _linked(old, new)
    if wal:
        beside = wal_of(kept)
        beside.unlink(missing_ok=True)
        beside.write_bytes(wal)
    _on_disk(path.parent)
    for old in _companions(path):
        old.unlink(missing_ok=True)
    return kept


def _linked(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:
        # A file system without second names.
        shutil.copy2(old, new)


def whole(path: Path) -> bytes:
    """All of a file, however large; nothing of one that is not there.

    Raises:
        OSError, UntrustedFileError: it cannot be read.
    """
    try:
        with open_plain(path) as file:
            return file.read()
    except NoSuchFileError:
        return b""


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def _companions(path: Path) -> tuple[Path, Path]:
    return wal_of(path), Path(f"{path}-shm")


def _on_disk(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _told(saved: Saved, kept: Path) -> str:
    lost = len(saved.known_messages - saved.messages.keys())
    lost_conversations = len(saved.known_conversations - saved.conversations.keys())
    found = f"{len(saved.conversations)} conversations and {len(saved.messages)} messages"
    cut = f", of {len(saved.cut)} more only the beginning is there" if saved.cut else ""
    return (
        f"the file was damaged: {found} were saved; "
        f"known to be lost are {lost} messages{cut}, and title and marks of {lost_conversations} conversations; "
        f"the damaged file is kept as {kept}"
    )


@dataclass
class Saved:
    """What was found.

    Args:
        conversations: by id; each with its `rowid`.
        messages: the same.
        tags: pairs of conversation and tag.
        changes: what can be undone: conversation, what, when, whether undone, steps; oldest first.
        cut: messages of whose text only the beginning is there.
        known_conversations: ids that are named anywhere.
        known_messages: the same.
    """

    conversations: dict[str, Row] = field(default_factory=dict)
    messages: dict[str, Row] = field(default_factory=dict)
    tags: set[tuple[str, str]] = field(default_factory=set)
    changes: dict[int, tuple[Value, ...]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    known_conversations: set[str] = field(default_factory=set)
    known_messages: set[str] = field(default_factory=set)


def collect(records: Iterable[PageRecord]) -> Saved:
    """All rows of ours among the records of a file; of a row that is there twice, the later one."""
    saved = Saved()
    for record in records:
        if record.rowid is None:
            _take_entry(record.values, saved)
        else:
            _take_row(record, record.rowid, saved)
    for row in saved.messages.values():
        saved.known_conversations.add(str(row["conversation_id"]))
        saved.known_messages.update(str(row[name]) for name in ("id", "parent_id") if row[name] is not None)
    saved.known_conversations.update(saved.conversations)
    return saved


def _take_row(record: PageRecord, rowid: int, saved: Saved) -> None:
    values = record.values
    if _is_message(values, whole=record.whole):
        row = {**_named(MESSAGE, values), "rowid": rowid}
        if not record.whole:
            row["status"] = "partial"
        _keep(saved.messages, row, _weight_of_message)
        whole = str(saved.messages[str(row["id"])]["text"]) != row["text"] or record.whole
        (saved.cut.discard if whole else saved.cut.add)(str(row["id"]))
    elif record.whole and _is_conversation(values):
        _keep(saved.conversations, {**_named(CONVERSATION, values), "rowid": rowid}, _weight_of_conversation)
    elif record.whole and _is_change(values):
        saved.changes[rowid] = values[1:]
    elif record.whole and len(values) == 3 and values[0] is None:
        # What the search knows by name.
        if _is_word(values[1]) and values[2] is None:
            saved.known_messages.add(str(values[1]))
        if _is_word(values[2]) and values[1] is None:
            saved.known_conversations.add(str(values[2]))


def _take_entry(values: Sequence[Value], saved: Saved) -> None:
    """Tags are an index themselves; the others name what there was."""
    match values:
        case (str(ident), str(tag)) if _is_word(ident):
            saved.tags.add((ident, tag))
        case (str(ident), "system" | "user" | "assistant", _, int()) if _is_word(ident):
            saved.known_conversations.add(ident)
        case (None | str(), None | int() | float(), str(ident), int()) if _is_word(ident):
            saved.known_messages.add(ident)


def _is_message(values: Sequence[Value], *, whole: bool) -> bool:
    """Its columns in their order; of one that is cut there are at least those up to the text."""
    if len(values) < (_fewest(MESSAGE) if whole else 5):
        return False
    ident, conversation, parent, role, text, *rest = values
    named = _is_word(ident) and _is_word(conversation) and _is_word(role) and (parent is None or _is_word(parent))
    if not named or not isinstance(text, str) or not str(ident).isprintable():
        # Zeros in an id are a page that was written over, and make another message of it.
        return False
    # A record that is none says nothing of whose row it is.
    return all(one is None or isinstance(one, column.types) for one, column in zip(rest, MESSAGE[5:8], strict=False))


def _is_conversation(values: Sequence[Value]) -> bool:
    fewest = _fewest(CONVERSATION)
    return (
        len(values) >= fewest
        and _is_word(values[0])
        and all(isinstance(value, column.types) for value, column in zip(values, CONVERSATION[:fewest], strict=False))
    )


def _fewest(columns: Sequence[Column]) -> int:
    return sum(column.since == 1 for column in columns)


def _is_change(values: Sequence[Value]) -> bool:
    return (
        len(values) == 1 + len(CHANGE)
        and values[0] is None
        and all(isinstance(value, column.types) for value, column in zip(values[1:], CHANGE, strict=True))
    )


def _is_word(value: Value) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_WORD


def _named(columns: Sequence[Column], values: Sequence[Value]) -> Row:
    return dict(zip_longest((column.name for column in columns), values[: len(columns)]))


def _keep(rows: dict[str, Row], row: Row, weight: Callable[[Row], tuple[float, ...]]) -> None:
    ident = str(row["id"])
    if ident not in rows or weight(row) >= weight(rows[ident]):
        rows[ident] = row


def _weight_of_message(row: Row) -> tuple[float, ...]:
    """An answer grows while it is written, and is closed then."""
    return row["status"] == "complete", len(str(row["text"]))


def _weight_of_conversation(row: Row) -> tuple[float, ...]:
    updated = row["updated_at"]
    return (updated if isinstance(updated, int | float) else 0.0,)
