"""The part of the store that works on the tree of a conversation: edit, branch off, jump, delete from here.

Messages never change; a tip moves.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exlchat.chat.model import Conversation, Message
from exlchat.chat.store import changes
from exlchat.chat.store.database import MissingRowError, RefusedError
from exlchat.chat.store.file import StoreFile, new_id, reads
from exlchat.chat.store.statements import (
    GONE_ON_FROM,
    alternatives,
    automatic_title,
    load_branch,
    load_conversation,
    load_message,
    put_message,
    tip_of,
    update_conversation,
)
from exlchat.untrusted.text import storable


def conversation_of(db: sqlite3.Connection, message_id: str) -> str:
    """The conversation of a message that was not deleted."""
    row = db.execute(
        "SELECT conversation_id FROM message WHERE id = ? AND deleted_at IS NULL", (message_id,)
    ).fetchone()
    if row is None:
        raise MissingRowError("message", message_id)
    return str(row[0])


def subtree(db: sqlite3.Connection, message_id: str) -> list[str]:
    """The message and all below it that was not deleted, oldest first."""
    # UNION, not UNION ALL: a damaged tree may lead back to itself.
    rows = db.execute(
        "WITH RECURSIVE below (id, place) AS (SELECT id, rowid FROM message WHERE id = ? AND deleted_at IS NULL UNION "
        "SELECT m.id, m.rowid FROM below JOIN message m ON m.parent_id = below.id AND m.deleted_at IS NULL) "
        "SELECT id FROM below ORDER BY place",
        (message_id,),
    )
    return [ident for (ident,) in rows]


def newest_leaf(db: sqlite3.Connection, message_id: str) -> str:
    """The end of the branch below a message that was written last."""
    return subtree(db, message_id)[-1]


def places(db: sqlite3.Connection, conversation_id: str) -> dict[str, tuple[int, int]]:
    """Which of how many alternatives, from 1, each message is that has any; oldest first, without hidden ones."""
    # A window over all messages takes five times as long, and few of them have any.
    groups = db.execute(
        "SELECT parent_id, role FROM message WHERE conversation_id = ? AND deleted_at IS NULL "
        "GROUP BY parent_id, role HAVING count(*) > 1",
        (conversation_id,),
    ).fetchall()
    found: dict[str, tuple[int, int]] = {}
    for parent_id, role in groups:
        rows = db.execute(
            "SELECT m.id FROM message m WHERE m.conversation_id = ? AND m.parent_id IS ? AND m.role = ? "
            f"AND m.deleted_at IS NULL AND NOT {GONE_ON_FROM} ORDER BY m.rowid",
            (conversation_id, parent_id, role),
        ).fetchall()
        if len(rows) > 1:
            found |= {ident: (number, len(rows)) for number, (ident,) in enumerate(rows, 1)}
    return found


_NUMBERED = re.compile(r" \((\d{1,9})\)$")


def _title_of_branch(db: sqlite3.Connection, conversation_id: str) -> str | None:
    """Its title with the next number behind it, so that the list tells them apart; none if it has none."""
    title = db.execute("SELECT title FROM conversation WHERE id = ?", (conversation_id,)).fetchone()[0]
    if not isinstance(title, str) or not title:
        return None
    base = _NUMBERED.sub("", title)
    others = db.execute(
        "SELECT title FROM conversation WHERE typeof(title) = 'text' AND substr(title, 1, ?) = ?", (len(base), base)
    )
    taken = [int(found[1]) for (other,) in others if (found := _NUMBERED.fullmatch(other[len(base) :]))]
    return f"{base} ({max([1, *taken]) + 1})"


def _shown_below(db: sqlite3.Connection, conversation_id: str, message_id: str) -> tuple[Message, ...]:
    """What follows a message: on the branch that is shown, or else on its newest one."""
    shown = load_branch(db, tip_of(db, conversation_id))
    places = [place for place, one in enumerate(shown) if one.id == message_id]
    if not places:
        shown = load_branch(db, newest_leaf(db, message_id))
        places = [place for place, one in enumerate(shown) if one.id == message_id]
    return shown[places[0] + 1 :]


def _copies(
    db: sqlite3.Connection,
    conversation_id: str,
    messages: Sequence[Message],
    named: Mapping[str, str],
) -> str | None:
    """Copies of a piece of a branch; `named` says under which ids its first messages already are. The last one's id."""
    names = {**named, **{one.id: new_id() for one in messages}}
    last = None
    for one in messages:
        parent_id = None if one.parent_id is None else names[one.parent_id]
        last = names[one.id]
        put_message(db, conversation_id, replace(renamed(one, names), id=last, parent_id=parent_id, foreign={}))
    return last


def renamed(message: Message, names: Mapping[str, str]) -> Message:
    record = message.record
    if record is not None and record.seen_from is not None:
        record = replace(record, seen_from=names.get(record.seen_from, record.seen_from))
    return replace(message, record=record, edited_from=names.get(message.edited_from or "", message.edited_from))


def _path(db: sqlite3.Connection, message_id: str | None) -> set[str]:
    rows = db.execute(
        "WITH RECURSIVE up (id) AS (SELECT ? UNION SELECT m.parent_id FROM up JOIN message m ON m.id = up.id) "
        "SELECT id FROM up WHERE id IS NOT NULL",
        (message_id,),
    )
    return {ident for (ident,) in rows}


def _require_written(messages: Sequence[Message]) -> None:
    if any(one.status == "streaming" for one in messages):
        raise RefusedError("an answer is still being written there; wait for its end or stop it")


class Branches(StoreFile):
    """Each operation is one transaction, and can be undone."""

    places = reads(places)

    def edit(
        self, message_id: str, text: str, *, carry: bool = False, settings: Mapping[str, Any] | None = None
    ) -> Message:
        """Put a changed copy beside a message, whoever wrote it, and show that; the old one stays an alternative.

        Args:
            message_id: of any message that is not being written.
            text: the new text.
            carry: let copies of what followed stand below the new one too; else it is the end of its branch, and is
                there to be answered or gone on from.
            settings: how the conversation is spoken to from it on; `None` leaves that as it was there.
        """
        with self._transaction() as db:
            now = self._clock()
            conversation_id = conversation_of(db, message_id)
            old = load_message(db, message_id)
            _require_written([old])
            new = replace(old, id=new_id(), text=storable(text), created_at=now, edited_from=old.id, foreign={})
            if text != old.text:
                new = replace(new, token_ids=(), record=None)
            if settings is not None:
                new = replace(new, settings=settings)
            put_message(db, conversation_id, new)
            tip = new.id
            if carry:
                followed = _shown_below(db, conversation_id, message_id)
                _require_written(followed)
                tip = _copies(db, conversation_id, followed, {old.id: new.id}) or tip
            changes.record(db, conversation_id, "edit", changes.move_shown(db, conversation_id, tip), now)
            update_conversation(db, conversation_id, "updated_at = ?", (now,))
        return new

    def branch_off(self, message_id: str) -> Conversation:
        with self._transaction() as db:
            now, ident = self._clock(), new_id()
            source = conversation_of(db, message_id)
            branch = load_branch(db, message_id)
            _require_written(branch)
            there = {one.id for one in branch}
            branch = tuple(one if one.edited_from in there else replace(one, edited_from=None) for one in branch)
            db.execute(
                "INSERT INTO conversation (id, title, title_by, created_at, updated_at, foreign_json) "
                "SELECT ?, ?, title_by, ?, ?, NULL FROM conversation WHERE id = ?",
                (ident, _title_of_branch(db, source), now, now, source),
            )
            db.execute("INSERT INTO tag SELECT ?, name FROM tag WHERE conversation_id = ?", (ident, source))
            tip = _copies(db, ident, branch, {})
            db.execute("UPDATE conversation SET tip_id = ? WHERE id = ?", (tip, ident))
            changes.record(db, source, "branch", changes.branched(db, ident, now), now)
            return load_conversation(db, ident)

    def jump(self, message_id: str) -> Conversation:
        """Show a message: an alternative, the hit of a search, the end of another branch.

        Where it is not on the branch that is shown, the newest branch below it is shown from now on.
        """
        with self._transaction() as db:
            conversation_id = conversation_of(db, message_id)
            if message_id not in _path(db, tip_of(db, conversation_id)):
                steps = changes.move_shown(db, conversation_id, newest_leaf(db, message_id))
                changes.record(db, conversation_id, "jump", steps, self._clock())
            return load_conversation(db, conversation_id)

    def withdraw(self, message_id: str) -> bool:
        """Remove a message that nothing followed, as if it had not been said; False where something did.

        Nothing can be undone of it: whoever withdraws it has its text.
        """
        with self._transaction() as db:
            conversation_id = conversation_of(db, message_id)
            followed = db.execute("SELECT 1 FROM message WHERE parent_id = ?", (message_id,)).fetchone()
            if followed is not None or tip_of(db, conversation_id) != message_id:
                return False
            parent_id = load_message(db, message_id).parent_id
            update_conversation(db, conversation_id, "tip_id = ?", (parent_id,))
            db.execute("DELETE FROM message WHERE id = ?", (message_id,))
            title = automatic_title(db, conversation_id)
            db.execute(
                "UPDATE conversation SET title = ?, title_by = CASE WHEN ?1 IS NOT NULL THEN 'first line' END "
                "WHERE id = ? AND title_by = 'first line'",
                (title, conversation_id),
            )
        return True

    def delete_from(self, message_id: str) -> Conversation:
        """Hide a message and everything below it; where it was shown, the newest other answer is, else what stands
        before.

        Raises:
            StoreError: an answer is being written there.
        """
        self.recover()
        with self._transaction() as db:
            now = self._clock()
            conversation_id = conversation_of(db, message_id)
            gone = subtree(db, message_id)
            busy = db.execute("SELECT m.id FROM message m JOIN answer_in_progress p ON p.message_id = m.id").fetchall()
            if {ident for (ident,) in busy} & set(gone):
                raise RefusedError("an answer is being written below this message; stop it first")
            others = [one.id for one in alternatives(db, message_id) if one.id != message_id]
            parent_id = load_message(db, message_id).parent_id
            steps: list[changes.Step] = []
            if tip_of(db, conversation_id) in gone:
                steps = changes.move_shown(db, conversation_id, newest_leaf(db, others[-1]) if others else parent_id)
            changes.record(db, conversation_id, "delete messages", [*steps, *changes.hide(db, gone, now)], now)
            return load_conversation(db, conversation_id)
