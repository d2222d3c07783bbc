"""Are the values of each row what their columns are to hold, and what of them can stay where they are not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exlchat.chat.store.changes import are_steps
from exlchat.chat.store.file import new_id
from exlchat.chat.store.rows import unpack_record
from exlchat.untrusted.text import one_line

Finding = tuple[str, Callable[[sqlite3.Connection], None] | None]
"""What is wrong, in one line, and what mends it, if anything does."""

_Value = str | bytes | float | None
_Row = dict[str, _Value]
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class _Column:
    """What a column is to hold. `words` are all that a text may be; an `object` and a `record` are JSON."""

    name: str
    kind: Literal["text", "time", "flag", "ids", "object", "record"]
    may_miss: bool = False
    words: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "object", "record")

    def wrong(self) -> str:
        """SQL that is true where even the kind of the value is wrong."""
        name = f'"{self.name}"'
        if self.kind == "flag":
            return f"typeof({name}) <> 'integer' OR {name} NOT IN (0, 1)"
        if self.kind == "ids":
            return f"typeof({name}) <> 'blob' OR length({name}) % 4"
        if self.kind == "time":
            usable = f"typeof({name}) IN ('real', 'integer') AND {name} BETWEEN -1e300 AND 1e300"
        else:
            usable = f"typeof({name}) = 'text'"
            if self.words:
                usable += f" AND {name} IN ({', '.join(repr(word) for word in self.words)})"
        return f"NOT ({usable}{f' OR {name} IS NULL' if self.may_miss else ''})"

    def readable(self, text: bytes) -> bool:
        """Whether a value of the right kind says something."""
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            return False
        if self.kind == "record":
            return unpack_record(decoded) is not None
        return self.kind != "object" or _is_object(decoded)


_MESSAGE = (
    _Column("id", "text"),
    _Column("conversation_id", "text"),
    _Column("parent_id", "text", may_miss=True),
    _Column("role", "text", words=_ROLES),
    _Column("text", "text"),
    _Column("created_at", "time"),
    _Column("status", "text", words=("complete", "streaming", "partial")),
    _Column("token_ids", "ids"),
    _Column("record", "record", may_miss=True),
    _Column("pinned", "flag"),
    _Column("summary", "text", may_miss=True),
    _Column("thinking", "text", may_miss=True),
    _Column("persona", "object", may_miss=True),
    _Column("edited_from", "text", may_miss=True),
    _Column("deleted_at", "time", may_miss=True),
    _Column("foreign_json", "object", may_miss=True),
)
_CONVERSATION = (
    _Column("id", "text"),
    _Column("title", "text", may_miss=True),
    _Column("created_at", "time"),
    _Column("updated_at", "time"),
    _Column("deleted_at", "time", may_miss=True),
    _Column("tip_id", "text", may_miss=True),
    _Column("pinned", "flag"),
    _Column("archived_at", "time", may_miss=True),
    _Column("title_by", "text", may_miss=True, words=("user", "model", "first line")),
    _Column("draft", "text"),
    _Column("foreign_json", "object", may_miss=True),
)
_CHANGE = (
    _Column("conversation_id", "text"),
    _Column("what", "text"),
    _Column("changed_at", "time"),
    _Column("undone", "flag"),
    _Column("steps", "text"),
)
_IN_PROGRESS = (
    _Column("message_id", "text"),
    _Column("writer", "text"),
    _Column("previous_tip_id", "text", may_miss=True),
)


def damaged_values(db: sqlite3.Connection) -> list[Finding]:
    """Rows with values of another kind than their columns have, that are not UTF-8, or that say nothing."""
    return [
        *_damaged(db, "conversation", _CONVERSATION),
        *_damaged(db, "message", _MESSAGE),
        *_tags(db),
        *_changes(db),
        *(
            ("a note of an answer being written is damaged; it is taken out", _removes("answer_in_progress", rowid))
            for rowid, _ in _wrong_rows(db, "answer_in_progress", _IN_PROGRESS)
        ),
    ]


def _damaged(
    db: sqlite3.Connection, table: Literal["conversation", "message"], columns: Sequence[_Column]
) -> Iterator[Finding]:
    for rowid, wrong in list(_wrong_rows(db, table, columns)):
        old = _row(db, table, columns, rowid)
        new = {column.name: _mended(column, old) for column in wrong}
        told = ", ".join(f"{name} ({_told(old[name], value)})" for name, value in new.items())
        ident = one_line(_decoded(old["id"]) or "without an id", 40)
        yield f"{table} {ident} holds values that are damaged: {told}", _updates(table, rowid, new)


def _wrong_rows(
    db: sqlite3.Connection, table: str, columns: Sequence[_Column]
) -> Iterator[tuple[int, tuple[_Column, ...]]]:
    """The rowid of each damaged row, and which of its columns are."""
    texts = [column for column in columns if column.is_text]
    # Zero, not NULL, where nothing is wrong; the texts as bytes, which may be anything.
    kinds = ", ".join(f"coalesce({column.wrong()}, 1)" for column in columns)
    blobs = ", ".join(f'CAST("{column.name}" AS BLOB)' for column in texts)
    for rowid, *values in db.execute(f"SELECT rowid, {kinds}, {blobs} FROM {table} ORDER BY rowid"):
        wrong = {column for column, found in zip(columns, values, strict=False) if found}
        for column, text in zip(texts, values[len(columns) :], strict=True):
            if text is not None and column not in wrong and not column.readable(text):
                wrong.add(column)
        if wrong:
            yield rowid, tuple(column for column in columns if column in wrong)


def _row(db: sqlite3.Connection, table: str, columns: Sequence[_Column], rowid: int) -> _Row:
    """Texts as bytes, numbers as they are."""
    names = ", ".join(
        f'CASE WHEN typeof("{one.name}") = \'text\' THEN CAST("{one.name}" AS BLOB) ELSE "{one.name}" END'
        for one in columns
    )
    row = db.execute(f"SELECT {names} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
    return dict(zip((one.name for one in columns), row, strict=True))


def _mended(column: _Column, row: Mapping[str, _Value]) -> _Value:
    """What can stay of a value; else what says the least."""
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


def _of_kind(column: _Column, row: Mapping[str, _Value]) -> _Value:
    match column.kind:
        case "time":
            return None if column.may_miss else _time_near(row)
        case "flag" | "ids":
            return 0 if column.kind == "flag" else b""
        case "object":
            # A conversation that was imported is on the list for it, whatever is in it.
            return "{}" if "tip_id" in row else None
        case "record":
            return None
    return _text(row[column.name], column)


def _text(value: _Value, column: _Column) -> str | None:
    return (None if column.may_miss else "") if value is None else _decoded(value)


def _role(row: Mapping[str, _Value]) -> str:
    """An answer is what has token ids or a record of how it came to be; everything else somebody has said."""
    said = _decoded(row["role"]).strip().lower()
    if said in _ROLES:
        return said
    return "assistant" if row["token_ids"] or row["record"] is not None or row["thinking"] is not None else "user"


def _time_near(row: Mapping[str, _Value]) -> float:
    """Another time of the row, or the beginning of time."""
    times = [value for name, value in row.items() if name.endswith("_at") and isinstance(value, int | float)]
    return next((float(value) for value in times if abs(value) < 1e300), 0.0)


def _tags(db: sqlite3.Connection) -> list[Finding]:
    kinds = "typeof(conversation_id), typeof(name)"
    rows = db.execute(f"SELECT {kinds}, CAST(conversation_id AS BLOB), CAST(name AS BLOB) FROM tag").fetchall()
    column = _Column("name", "text")
    return [
        (f"a tag holds values that are damaged: {one_line(_decoded(name), 40)}", _mends_tag(kinds, ident, name))
        for *kinds, ident, name in rows
        if kinds != ["text", "text"] or not (column.readable(ident) and column.readable(name))
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
    damaged = {rowid for rowid, _ in _wrong_rows(db, "change", _CHANGE)}
    for rowid, steps in db.execute("SELECT id, CAST(steps AS BLOB) FROM change"):
        if rowid not in damaged and not are_steps(_parsed(_decoded(steps))):
            damaged.add(rowid)
    return [
        (f"change {rowid} cannot be read; it can no longer be undone and is taken out", _removes("change", rowid))
        for rowid in sorted(damaged)
    ]


def _removes(table: str, rowid: int) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))

    return mend


def _updates(table: str, rowid: int, values: Mapping[str, _Value]) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        given = dict(values)
        if "id" in given and db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (given["id"],)).fetchone():
            given["id"] = new_id()
        names = ", ".join(f'"{name}" = ?' for name in given)
        db.execute(f"UPDATE {table} SET {names} WHERE rowid = ?", (*given.values(), rowid))

    return mend


def _told(old: _Value, new: _Value) -> str:
    """What becomes of a value."""
    if new is None or new in ("", "{}", b""):
        return "taken out"
    before, after = one_line(_decoded(old), 20), one_line(_decoded(new), 20)
    return "what can be read stays" if len(before) > 12 or "\ufffd" in after else f"{before!r} becomes {after!r}"


def _decoded(value: _Value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _is_object(packed: str) -> bool:
    return isinstance(_parsed(packed), dict)


def _parsed(packed: str) -> object:
    try:
        return json.loads(packed)
    except (ValueError, RecursionError):
        return None
