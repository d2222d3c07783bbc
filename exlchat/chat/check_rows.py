"""Is what the database holds readable: its parts, its rows, what is packed into them, and the index of the search."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence

from exlchat.chat.rows import unpack_record
from exlchat.chat.schema import FILL_INDEX, INDEX_ANEW, MIGRATIONS

Finding = tuple[str, Callable[[sqlite3.Connection], None] | None]
"""What is wrong, in one line, and what mends it, if anything does."""

_TEXTS = ("text", "summary", "thinking", "persona", "record", "foreign_json")


def missing_parts(db: sqlite3.Connection) -> list[Finding]:
    """Tables, indices, triggers and views of the schema that are not there; they are made anew, and empty."""
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    return [
        (f"the database has no {kind} {name}", _index_anew if name == "search_index" else _runs(statement))
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


def damaged_rows(db: sqlite3.Connection) -> list[Finding]:
    """Messages with values of another kind than their columns have, or with texts that are not UTF-8."""
    blobs = ", ".join(f"CAST({name} AS BLOB)" for name in _TEXTS)
    kinds = " OR ".join(f"typeof({name}) NOT IN ('text', 'null')" for name in _TEXTS)
    rows = db.execute(
        f"SELECT CAST(id AS TEXT), {kinds} OR typeof(created_at) NOT IN ('real', 'integer') "
        f"OR typeof(token_ids) <> 'blob' OR length(token_ids) % 4, {blobs} FROM message"
    )
    wrong = [ident for ident, of_other_kind, *texts in rows if of_other_kind or not _are_utf8(texts)]
    return [(f"message {ident} holds values that are damaged", _mends_row(ident)) for ident in wrong]


def _are_utf8(texts: Sequence[bytes | None]) -> bool:
    try:
        for text in texts:
            if text is not None:
                text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _mends_row(message_id: str) -> Callable[[sqlite3.Connection], None]:
    """What can be read of its texts stays; a time is that of the conversation, token ids are given up."""

    def mend(db: sqlite3.Connection) -> None:
        blobs = ", ".join(f"CAST({name} AS BLOB)" for name in _TEXTS)
        row = db.execute(f"SELECT {blobs} FROM message WHERE id = ?", (message_id,)).fetchone()
        texts = [None if text is None else text.decode("utf-8", "replace") for text in row]
        db.execute(
            f"UPDATE message SET {', '.join(f'{name} = ?' for name in _TEXTS)} WHERE id = ?", (*texts, message_id)
        )
        db.execute(
            "UPDATE message SET created_at = (SELECT created_at FROM conversation c WHERE c.id = conversation_id) "
            "WHERE id = ? AND typeof(created_at) NOT IN ('real', 'integer')",
            (message_id,),
        )
        db.execute(
            "UPDATE message SET token_ids = x'' "
            "WHERE id = ? AND (typeof(token_ids) <> 'blob' OR length(token_ids) % 4)",
            (message_id,),
        )

    return mend


def unreadable(db: sqlite3.Connection) -> list[Finding]:
    """What is packed into columns as JSON and is none."""
    found: list[Finding] = []
    for ident, record in db.execute("SELECT id, record FROM message WHERE record IS NOT NULL"):
        if unpack_record(record) is None:
            found.append((f"how answer {ident} came to be cannot be read", None))
    for column in ("persona", "foreign_json"):
        for ident, packed in db.execute(f"SELECT id, {column} FROM message WHERE {column} IS NOT NULL"):
            if not _is_object(packed):
                found.append((f"{column} of message {ident} cannot be read", None))
    for ident, steps in db.execute("SELECT id, steps FROM change").fetchall():
        if not _is_list(steps):
            found.append((f"change {ident} cannot be read", _runs("DELETE FROM change WHERE id = ?", ident)))
    return found


def search_index(db: sqlite3.Connection) -> list[Finding]:
    """Whether a search finds what the messages say."""
    missing = db.execute(
        "SELECT (SELECT count(*) FROM message WHERE status <> 'streaming' AND id NOT IN "
        "(SELECT message_id FROM searchable WHERE message_id IS NOT NULL)) "
        "+ (SELECT count(*) FROM conversation WHERE title IS NOT NULL AND id NOT IN "
        "(SELECT conversation_id FROM searchable WHERE conversation_id IS NOT NULL))"
    ).fetchone()[0]
    try:
        db.execute("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        # A part that is missing or of no known version is another error than one that is damaged.
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
            raise
        missing = missing or 1
    return [("the index of the search does not hold what the messages say", _fill_index)] if missing else []


def _runs(statement: str, *values: str | int) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        db.execute(statement, values)

    return mend


def _fill_index(db: sqlite3.Connection) -> None:
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


def _is_object(packed: str) -> bool:
    return isinstance(_parsed(packed), dict)


def _is_list(packed: str) -> bool:
    return isinstance(_parsed(packed), list)


def _parsed(packed: str) -> object:
    try:
        return json.loads(packed)
    except (ValueError, RecursionError):
        return None
