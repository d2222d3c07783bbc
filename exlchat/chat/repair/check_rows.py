"""Are the parts of the database there, and does the index of the search hold what the messages say."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from exlchat.chat.repair.check_values import Finding
from exlchat.chat.store.schema import FILL_INDEX, INDEX_ANEW, MIGRATIONS


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


def _runs(statement: str, *values: str | int) -> Callable[[sqlite3.Connection], None]:
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
    """Make the index of the search anew of what the tables hold."""
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
