"""Are the parts of the database there, and the values of each row what their columns are to hold.

What of them can stay where they are not; and does the index of the search hold what the messages say.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

from exlchat.chat.model import Role
from exlchat.chat.store.changes import are_steps
from exlchat.chat.store.file import new_id
from exlchat.chat.store.rows import unpack_record
from exlchat.chat.store.schema import (
    CHANGE,
    CONVERSATION,
    FILL_INDEX,
    IN_PROGRESS,
    INDEX_ANEW,
    MESSAGE,
    MIGRATIONS,
    TAG,
    Column,
    Value,
)
from exlchat.untrusted.text import one_line

Finding = tuple[str, Callable[[sqlite3.Connection], None] | None]
"""What is wrong, in one line, and what mends it, if anything does."""

_Row = dict[str, Value]


def damaged_values(db: sqlite3.Connection) -> list[Finding]:
    """Rows with values of another kind than their columns have, that are not UTF-8, or that say nothing."""
    return [
        *_damaged(db, "conversation", CONVERSATION),
        *_damaged(db, "message", MESSAGE),
        *_tags(db),
        *_changes(db),
        *(
            (
                "a note of an answer being written is damaged; it is taken out",
                _removes("answer_in_progress", rowid),
            )
            for rowid, _ in _wrong_rows(db, "answer_in_progress", IN_PROGRESS)
        ),
    ]


def _damaged(
    db: sqlite3.Connection, table: Literal["conversation", "message"], columns: Sequence[Column]
) -> Iterator[Finding]:
    for rowid, wrong in list(_wrong_rows(db, table, columns)):
        old = _row(db, table, columns, rowid)
        new = {column.name: _mended(column, old) for column in wrong}
        told = ", ".join(f"{name} ({_told(old[name], value)})" for name, value in new.items())
        ident = one_line(_decoded(old["id"]) or "without an id", 40)
        yield f"{table} {ident} holds values that are damaged: {told}", _updates(table, rowid, new)


def _wrong_rows(
    db: sqlite3.Connection, table: str, columns: Sequence[Column]
) -> Iterator[tuple[int, tuple[Column, ...]]]:
    texts = [column for column in columns if column.is_text]
    # Zero, not NULL, where nothing is wrong; the texts as bytes, which may be anything.
    kinds = ", ".join(f"coalesce({_wrong(column)}, 1)" for column in columns)
    blobs = ", ".join(f'CAST("{column.name}" AS BLOB)' for column in texts)
    for rowid, *values in db.execute(f"SELECT rowid, {kinds}, {blobs} FROM {table} ORDER BY rowid"):
        wrong = {column for column, found in zip(columns, values, strict=False) if found}
        for column, text in zip(texts, values[len(columns) :], strict=True):
            if text is not None and column not in wrong and not _readable(column, text):
                wrong.add(column)
        if wrong:
            yield rowid, tuple(column for column in columns if column in wrong)


def _wrong(column: Column) -> str:
    """SQL that is true where even the kind of the value is wrong."""
    name = f'"{column.name}"'
    if column.kind == "flag":
        return f"typeof({name}) <> 'integer' OR {name} NOT IN (0, 1)"
    if column.kind == "ids":
        return f"typeof({name}) <> 'blob' OR length({name}) % 4"
    if column.kind == "time":
        usable = f"typeof({name}) IN ('real', 'integer') AND {name} BETWEEN -1e300 AND 1e300"
    else:
        usable = f"typeof({name}) = 'text'"
        if column.words:
            usable += f" AND {name} IN ({', '.join(repr(word) for word in column.words)})"
    return f"NOT ({usable}{f' OR {name} IS NULL' if column.may_miss else ''})"


def _readable(column: Column, text: bytes) -> bool:
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    if column.kind == "record":
        return unpack_record(decoded) is not None
    return column.kind != "object" or isinstance(_parsed(decoded), dict)


def _row(db: sqlite3.Connection, table: str, columns: Sequence[Column], rowid: int) -> _Row:
    """Texts as bytes, numbers as they are."""
    names = ", ".join(
        f'CASE WHEN typeof("{one.name}") = \'text\' THEN CAST("{one.name}" AS BLOB) ELSE "{one.name}" END'
        for one in columns
    )
    row = db.execute(f"SELECT {names} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
    return dict(zip((one.name for one in columns), row, strict=True))


def _mended(column: Column, row: Mapping[str, Value]) -> Value:
    match column.name:
        case "id" | "conversation_id":
            return _decoded(row[column.name]) or new_id()
        case "role":
            return _role(row)
        case "status":
            return "partial" if row["role"] == b"assistant" else "complete"
        case "title_by":
            # A title of nobody's would be replaced by the next one that a model makes.
            return None if row["title"] is None else "user"
    return _of_kind(column, row)


def _of_kind(column: Column, row: Mapping[str, Value]) -> Value:
    if column.kind == "time" and not column.may_miss:
        return _time_near(row)
    if column.kind == "object" and "tip_id" in row:
        # A conversation that was imported is on the list for it, whatever is in it.
        return "{}"
    value = row[column.name]
    return column.least if value is None or column.kind != "text" else _decoded(value)


def _role(row: Mapping[str, Value]) -> str:
    """An answer is what has token ids or a record of how it came to be; everything else somebody has said."""
    said = _decoded(row["role"]).strip().lower()
    if said in get_args(Role):
        return said
    return "assistant" if row["token_ids"] or row["record"] is not None or row["thinking"] is not None else "user"


def _time_near(row: Mapping[str, Value]) -> float:
    """Another time of the row, or the beginning of time."""
    times = [value for name, value in row.items() if name.endswith("_at") and isinstance(value, int | float)]
    return next((float(value) for value in times if abs(value) < 1e300), 0.0)


def _tags(db: sqlite3.Connection) -> list[Finding]:
    kinds = "typeof(conversation_id), typeof(name)"
    rows = db.execute(f"SELECT {kinds}, CAST(conversation_id AS BLOB), CAST(name AS BLOB) FROM tag").fetchall()
    return [
        (f"a tag holds values that are damaged: {one_line(_decoded(name), 40)}", _mends_tag(kinds, ident, name))
        for *kinds, ident, name in rows
        if kinds != ["text", "text"] or not all(map(_readable, TAG, (ident, name)))
    ]


def _mends_tag(kinds: Sequence[str], ident: bytes, name: bytes) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        db.execute(
            "DELETE FROM tag WHERE typeof(conversation_id) = ? AND typeof(name) = ? "
            "AND CAST(conversation_id AS BLOB) IS ? AND CAST(name AS BLOB) IS ?",
            (*kinds, ident, name),
        )
        db.execute("INSERT OR IGNORE INTO tag VALUES (?, ?)", (_decoded(ident), _decoded(name)))

    return mend


def _changes(db: sqlite3.Connection) -> list[Finding]:
    """Changes that can be neither undone nor done again: they would stand before all others for good."""
    damaged = {rowid for rowid, _ in _wrong_rows(db, "change", CHANGE)}
    for rowid, steps in db.execute("SELECT id, CAST(steps AS BLOB) FROM change"):
        if rowid not in damaged and not are_steps(_parsed(_decoded(steps))):
            damaged.add(rowid)
    return [
        (
            f"change {rowid} cannot be read; it can no longer be undone and is taken out",
            _removes("change", rowid),
        )
        for rowid in sorted(damaged)
    ]


def _removes(table: str, rowid: int) -> Callable[[sqlite3.Connection], None]:
    return runs(f"DELETE FROM {table} WHERE rowid = ?", rowid)


def _updates(table: str, rowid: int, values: Mapping[str, Value]) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        given = dict(values)
        if "id" in given and db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (given["id"],)).fetchone():
            given["id"] = new_id()
        names = ", ".join(f'"{name}" = ?' for name in given)
        db.execute(f"UPDATE {table} SET {names} WHERE rowid = ?", (*given.values(), rowid))

    return mend


def _told(old: Value, new: Value) -> str:
    if new is None or new in ("", "{}", b""):
        return "taken out"
    before, after = one_line(_decoded(old), 20), one_line(_decoded(new), 20)
    return "what can be read stays" if len(before) > 12 or "\ufffd" in after else f"{before!r} becomes {after!r}"


def _decoded(value: Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _parsed(packed: str) -> object:
    try:
        return json.loads(packed)
    except (ValueError, RecursionError):
        return None


def missing_parts(db: sqlite3.Connection) -> list[Finding]:
    """Tables, indices, triggers and views of the schema that are not there; they are made anew, and empty."""
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    return [
        (f"the database has no {kind} {name}", _index_anew if name == "search_index" else runs(statement))
        for kind, name, statement in _parts()
        if name not in there
    ]


def _parts() -> list[tuple[str, str, str]]:
    """Kind, name and statement of what a new database has, but for what the index of the search makes by itself."""
    fresh = sqlite3.connect(":memory:")
    try:
        fresh.create_function("title_of", 1, lambda text: text)
        for statements in MIGRATIONS:
            for statement in statements:
                fresh.execute(statement)
        return fresh.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'search_index_%' "
            "ORDER BY type = 'trigger', rowid"
        ).fetchall()
    finally:
        fresh.close()


def search_index(db: sqlite3.Connection) -> list[Finding]:
    """Whether a search finds what the messages say."""
    missing = db.execute(
        "SELECT (SELECT count(*) FROM message WHERE status <> 'streaming' AND id NOT IN "
        "(SELECT message_id FROM searchable WHERE message_id IS NOT NULL)) "
        "+ (SELECT count(*) FROM conversation WHERE title IS NOT NULL AND id NOT IN "
        "(SELECT conversation_id FROM searchable WHERE conversation_id IS NOT NULL)) "
        "+ (SELECT count(*) FROM searchable WHERE coalesce(message_id NOT IN (SELECT id FROM message), 1) "
        "AND coalesce(conversation_id NOT IN (SELECT id FROM conversation), 1))"
    ).fetchone()[0]
    try:
        db.execute("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        # A part that is missing or of no known version is another error than one that is damaged.
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            raise
        missing = missing or 1
    return [("the index of the search does not hold what the messages say", fill_index)] if missing else []


def runs(statement: str, *values: str | int) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        db.execute(statement, values)

    return mend


@contextmanager
def without_triggers(db: sqlite3.Connection) -> Iterator[None]:
    """They keep the index in step, and cannot where it is damaged itself; it is to be filled afterwards."""
    triggers = [(name, statement) for kind, name, statement in _parts() if kind == "trigger"]
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER IF EXISTS {name}")
    yield
    for _, statement in triggers:
        db.execute(statement)


def fill_index(db: sqlite3.Connection) -> None:
    db.execute("SAVEPOINT filling")
    try:
        _all(db, FILL_INDEX)
    except sqlite3.DatabaseError:
        db.execute("ROLLBACK TO filling")
        _index_anew(db)
    db.execute("RELEASE filling")


def _index_anew(db: sqlite3.Connection) -> None:
    _all(db, INDEX_ANEW)


def _all(db: sqlite3.Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        db.execute(statement)
