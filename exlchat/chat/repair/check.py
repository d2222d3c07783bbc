"""Is the database whole: what SQLite itself finds, and what only we know about trees, tips, answers and the index."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exlchat.chat.repair.check_values import (
    Finding,
    damaged_values,
    fill_index,
    missing_parts,
    runs,
    search_index,
    without_triggers,
)
from exlchat.chat.store.backup import back_up
from exlchat.chat.store.branches import newest_leaf
from exlchat.chat.store.changes import nearest_kept
from exlchat.chat.store.database import transaction
from exlchat.chat.store.statements import automatic_title

_MOST_LINES = 20
_OF_AN_INDEX = re.compile(r"row \d+ missing from index|wrong # of entries in index|Page \d+(:| is) never used")
"""Lines about what can be made anew where it stands: the tables themselves are whole."""

_OF_A_VALUE = re.compile(r"(?:CHECK constraint failed|(?:NULL|NUMERIC|TEXT|non-\w+) value) in |.*FTS5")
"""Lines of SQLite's about what we look at ourselves, in the words of its versions."""


class BrokenError(Exception):
    """SQLite's own structures are damaged beyond what it can mend itself; `lines` say how."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(lines[0])
        self.lines = tuple(f"SQLite: {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Problem:
    text: str
    repaired: bool = False


def check(db: sqlite3.Connection, path: Path | None, *, repair: bool = False) -> list[Problem]:
    """Everything that is found; with `repair` the database is copied first, and what can be mended is.

    No message is removed by a repair: what hangs on nothing becomes a beginning of its own. Of a value that cannot be
    read, what can be stays; what is taken out is named, and is in the copy.

    Raises:
        BrokenError: more than an index of SQLite's is damaged; nothing was changed, or only indices.
        sqlite3.Error: the database cannot even be read.
        OSError: the copy cannot be made.
    """
    with _bare(db):
        broken = _structure(db)
        if not all(_OF_AN_INDEX.match(line) for line in broken):
            raise BrokenError(broken)
        found: list[Finding] = [(f"SQLite: {line}", _rebuild_indices) for line in broken]
        if not broken:
            found = _findings(db, path)
        if not repair or not found:
            return [Problem(text) for text, _ in found]
        if path is not None:
            back_up(path, "check")
        return _repaired(db, path, broken=bool(broken))


@contextmanager
def _bare(db: sqlite3.Connection) -> Iterator[None]:
    """Texts that are no UTF-8 are to be looked at, not refused; what belongs to what is our own concern here."""
    kept = db.text_factory
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    db.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        db.execute("PRAGMA foreign_keys = ON")
        db.text_factory = kept


def _structure(db: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with its own structures. Single values are looked at here, by what they are to say."""
    # As many lines again: damaged values must not crowd out what is worse.
    rows = db.execute(f"PRAGMA integrity_check({_MOST_LINES * 50})")
    lines = [line for (row,) in rows for line in row.splitlines() if line != "ok" and not line.startswith("***")]
    return [line for line in lines if not _OF_A_VALUE.match(line)][:_MOST_LINES]


def _repaired(db: sqlite3.Connection, path: Path | None, *, broken: bool) -> list[Problem]:
    """One repair may bring the next thing to light: a message on its own lets a tip be found again."""
    done: list[Problem] = []
    if broken:
        with contextlib.suppress(sqlite3.IntegrityError), transaction(db, path, write=True):
            _rebuild_indices(db)
        _give_back_lost_pages(db)
        left = _structure(db)
        if left:
            raise BrokenError(left)
        done.append(Problem("SQLite: an index did not agree with its table", repaired=True))
    with transaction(db, path, write=True):
        done += _mended(db, missing_parts)
        # The repairs may bring it out of step themselves, so it is looked at before them and filled after them.
        index = search_index(db)
        with without_triggers(db):
            for look in _LOOKS:
                done += _mended(db, look)
        done += [Problem(text, repaired=True) for text, _ in index]
        if done:
            fill_index(db)
    return done


def _mended(db: sqlite3.Connection, look: Callable[[sqlite3.Connection], list[Finding]]) -> list[Problem]:
    done: list[Problem] = []
    for text, mend in look(db):
        if mend is not None:
            mend(db)
        done.append(Problem(text, repaired=mend is not None))
    return done


def _findings(db: sqlite3.Connection, path: Path | None) -> list[Finding]:
    # The index of the search is looked at by writing into it.
    with transaction(db, path, write=True):
        # The others look into what is missing.
        return missing_parts(db) or [finding for look in (*_LOOKS, search_index) for finding in look(db)]


def _lost_conversations(db: sqlite3.Connection) -> list[Finding]:
    rows = db.execute(
        "SELECT DISTINCT conversation_id FROM message m "
        "WHERE NOT EXISTS (SELECT 1 FROM conversation c WHERE c.id = m.conversation_id)"
    ).fetchall()

    def mend(ident: str) -> Callable[[sqlite3.Connection], None]:
        def insert(db: sqlite3.Connection) -> None:
            title = automatic_title(db, ident)
            db.execute(
                "INSERT INTO conversation (id, title, title_by, created_at, updated_at, tip_id) "
                "SELECT ?1, ?2, ?3, min(created_at), max(created_at), (SELECT id FROM message "
                "WHERE conversation_id = ?1 AND deleted_at IS NULL ORDER BY rowid DESC LIMIT 1) "
                "FROM message WHERE conversation_id = ?1",
                (ident, title, title and "first line"),
            )

        return insert

    return [(f"messages of the conversation {ident}, which is not there", mend(ident)) for (ident,) in rows]


def _lost_parents(db: sqlite3.Connection) -> list[Finding]:
    rows = db.execute(
        "SELECT m.id FROM message m LEFT JOIN message p ON p.id = m.parent_id "
        "WHERE m.parent_id IS NOT NULL AND (p.id IS NULL OR p.conversation_id <> m.conversation_id)"
    ).fetchall()
    return [(f"message {ident} follows one that its conversation does not have", _begins(ident)) for (ident,) in rows]


def _cycles(db: sqlite3.Connection) -> list[Finding]:
    """Messages from which no way leads to a first one; the oldest of each ring becomes a first one."""
    rows = db.execute(
        "WITH RECURSIVE reached (id) AS (SELECT id FROM message WHERE parent_id IS NULL UNION "
        "SELECT m.id FROM reached JOIN message m ON m.parent_id = reached.id) "
        "SELECT id, parent_id FROM message WHERE id NOT IN (SELECT id FROM reached) ORDER BY rowid"
    ).fetchall()
    parents: dict[str, str] = dict(rows)
    settled: set[str] = set()
    found: list[Finding] = []
    for ident in parents:
        trail: list[str] = []
        here = ident
        while here in parents and here not in settled:
            settled.add(here)
            trail.append(here)
            here = parents[here]
        if here in trail:
            ring = trail[trail.index(here) :]
            oldest = next(one for one in parents if one in set(ring))
            found.append((f"message {oldest} follows itself, over {len(ring)} messages", _begins(oldest)))
    return found


def _shown_below_hidden(db: sqlite3.Connection) -> list[Finding]:
    rows = db.execute(
        "WITH RECURSIVE up (id) AS (SELECT m.parent_id FROM message m JOIN message p ON p.id = m.parent_id "
        "WHERE m.deleted_at IS NULL AND p.deleted_at IS NOT NULL UNION "
        "SELECT m.parent_id FROM up JOIN message m ON m.id = up.id WHERE m.parent_id IS NOT NULL) "
        "SELECT m.id FROM up JOIN message m ON m.id = up.id WHERE m.deleted_at IS NOT NULL"
    ).fetchall()
    return [
        (f"message {ident} is hidden, and something below it is not", _updates("deleted_at = NULL", ident))
        for (ident,) in rows
    ]


def _tips(db: sqlite3.Connection) -> list[Finding]:
    rows = db.execute(
        "SELECT c.id, c.tip_id, m.id FROM conversation c LEFT JOIN message m ON m.id = c.tip_id AND "
        "m.conversation_id = c.id WHERE (c.tip_id IS NOT NULL AND (m.id IS NULL OR m.deleted_at IS NOT NULL))"
    ).fetchall()
    # A tip before the first message is in order where the tree has a beginning to go back to.
    return [(f"the branch that conversation {ident} shows ends nowhere", _finds_tip(ident)) for ident, _, _ in rows]


def _finds_tip(conversation_id: str) -> Callable[[sqlite3.Connection], None]:
    def mend(db: sqlite3.Connection) -> None:
        (tip,) = db.execute("SELECT tip_id FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
        kept = nearest_kept(db, conversation_id, tip)
        if kept is None:
            first = db.execute(
                "SELECT id FROM message WHERE conversation_id = ? AND parent_id IS NULL AND deleted_at IS NULL "
                "ORDER BY rowid DESC LIMIT 1",
                (conversation_id,),
            ).fetchone()
            kept = None if first is None else newest_leaf(db, first[0])
        db.execute("UPDATE conversation SET tip_id = ? WHERE id = ?", (kept, conversation_id))

    return mend


def _answers(db: sqlite3.Connection) -> list[Finding]:
    lost = db.execute(
        "SELECT id FROM message WHERE status = 'streaming' AND id NOT IN (SELECT message_id FROM answer_in_progress)"
    ).fetchall()
    ended = db.execute(
        "SELECT message_id FROM answer_in_progress p LEFT JOIN message m ON m.id = p.message_id "
        "WHERE m.status IS NOT 'streaming'"
    ).fetchall()
    forget = "DELETE FROM answer_in_progress WHERE message_id = ?"
    return [
        *((f"nobody writes answer {ident} any more", _ends(ident)) for (ident,) in lost),
        *((f"answer {ident} has ended and is still noted as being written", runs(forget, ident)) for (ident,) in ended),
    ]


def _ends(message_id: str) -> Callable[[sqlite3.Connection], None]:
    return _updates("status = 'partial'", message_id)


def _originals(db: sqlite3.Connection) -> list[Finding]:
    rows = db.execute(
        "SELECT m.id FROM message m WHERE m.edited_from IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM message o WHERE o.id = m.edited_from)"
    ).fetchall()
    return [
        (f"message {ident} is a copy of one that is not there", _updates("edited_from = NULL", ident))
        for (ident,) in rows
    ]


def _references(db: sqlite3.Connection) -> list[Finding]:
    """What foreign keys find beyond messages and tips: tags, changes and answers of what is not there."""
    rows = db.execute("PRAGMA foreign_key_check").fetchall()
    without_rowid = "DELETE FROM tag WHERE conversation_id NOT IN (SELECT id FROM conversation)"
    return [
        (
            f"an entry in {table} belongs to a {parent} that is not there",
            runs(without_rowid) if table == "tag" else runs(f"DELETE FROM {table} WHERE rowid = ?", rowid),
        )
        for table, rowid, parent, _ in rows
        if table in ("tag", "change", "answer_in_progress")
    ]


_LOOKS = (
    damaged_values,
    _lost_conversations,
    _lost_parents,
    _cycles,
    _shown_below_hidden,
    _tips,
    _answers,
    _originals,
    _references,
)


def _begins(message_id: str) -> Callable[[sqlite3.Connection], None]:
    return _updates("parent_id = NULL", message_id)


def _updates(assignment: str, message_id: str) -> Callable[[sqlite3.Connection], None]:
    return runs(f"UPDATE message SET {assignment} WHERE id = ?", message_id)


def _give_back_lost_pages(db: sqlite3.Connection) -> None:
    """Pages that nothing uses stay wrong until the file is written anew; where that fails, what is wrong is told."""
    with contextlib.suppress(sqlite3.DatabaseError):
        db.execute("VACUUM")


def _rebuild_indices(db: sqlite3.Connection) -> None:
    db.execute("REINDEX")
