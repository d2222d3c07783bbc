"""The part of the store that keeps conversations in order: the list, titles, tags, marks, drafts, what was deleted."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from exlchat.chat.model import ConversationSummary, Message, clean_title
from exlchat.chat.store import changes
from exlchat.chat.store.changes import Step, What
from exlchat.chat.store.database import MissingRowError, explained
from exlchat.chat.store.file import StoreFile, reads, writes
from exlchat.chat.store.rows import shown_time, shown_title
from exlchat.chat.store.statements import automatic_title, load_message, update_conversation
from exlchat.chat.store.tree_rows import clean_tags
from exlchat.untrusted.text import storable

if TYPE_CHECKING:
    from exlchat.chat.repair.check import Problem

Which = Literal["kept", "archived", "deleted"]
_WHICH: dict[Which, str] = {
    "kept": "c.deleted_at IS NULL AND c.archived_at IS NULL",
    "archived": "c.deleted_at IS NULL AND c.archived_at IS NOT NULL",
    "deleted": "c.deleted_at IS NOT NULL",
}
KEEP_DELETED_SECONDS = 30 * 86400.0
KEEP_EMPTY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Purged:
    """How much was removed for good; `messages` are those of conversations that stay."""

    conversations: int
    messages: int


def conversation_summaries(db: sqlite3.Connection, which: Which = "kept") -> list[ConversationSummary]:
    """Conversations that have or had a message of the user, or a title, or that were imported: else they were only
    opened. Pinned ones first, else newest first. One whose messages were all deleted stays, so that it can be undone.

    `message_count` counts all branches, system messages and what was deleted apart. `which` asks for those that are
    neither archived nor deleted, for archived or for deleted ones.
    """
    rows = db.execute(f"{_summaries(which)} ORDER BY c.pinned DESC, c.updated_at DESC, c.rowid DESC")
    return [
        ConversationSummary(
            str(ident),
            shown_title(title),
            shown_time(created_at),
            shown_time(updated_at),
            count,
            bool(pinned),
            bool(archived),
            tuple(sorted(tags.split("\n"))) if tags else (),
        )
        for ident, title, created_at, updated_at, count, pinned, archived, tags in rows
    ]


def _summaries(which: Which) -> str:
    return (
        "SELECT c.id, c.title, c.created_at, c.updated_at, "
        "count(*) FILTER (WHERE m.role <> 'system' AND m.deleted_at IS NULL), c.pinned, c.archived_at IS NOT NULL, "
        "(SELECT group_concat(name, char(10)) FROM tag WHERE conversation_id = c.id) FROM conversation c "
        "JOIN message m ON m.conversation_id = c.id "
        f"WHERE {_WHICH[which]} GROUP BY c.id "
        "HAVING max(m.role = 'user') OR c.title IS NOT NULL OR c.foreign_json IS NOT NULL"
    )


def tags(db: sqlite3.Connection, conversation_id: str) -> tuple[str, ...]:
    """The tags of a conversation, sorted."""
    rows = db.execute("SELECT name FROM tag WHERE conversation_id = ? ORDER BY name", (conversation_id,))
    return tuple(name for (name,) in rows)


def find_ids(
    db: sqlite3.Connection, table: Literal["conversation", "message"], beginning: str, limit: int = 2
) -> list[str]:
    """Ids that begin so, deleted conversations' too; the whole id itself first."""
    rows = db.execute(
        f"SELECT id FROM {table} WHERE id = ?1 OR substr(id, 1, length(?1)) = ?1 ORDER BY id <> ?1 LIMIT ?2",
        (storable(beginning), limit),
    )
    return [ident for (ident,) in rows]


def put_away_last(db: sqlite3.Connection, which: Literal["archived", "deleted"]) -> str | None:
    """The id of the conversation that was archived, or deleted, last."""
    row = db.execute(
        f"SELECT c.id FROM conversation c WHERE {_WHICH[which]} ORDER BY c.{which}_at DESC, c.rowid DESC LIMIT 1"
    ).fetchone()
    return None if row is None else str(row[0])


def counts(db: sqlite3.Connection) -> dict[str, int]:
    """How much there is. Conversations are counted as they are listed, those that were only opened not among them."""
    listed: dict[str, Which] = {"conversations": "kept", "archived": "archived", "deleted": "deleted"}
    asked = {
        **{name: f"FROM ({_summaries(which)})" for name, which in listed.items()},
        "messages": "FROM message m JOIN conversation c ON c.id = m.conversation_id "
        "WHERE m.deleted_at IS NULL AND m.role <> 'system' AND c.deleted_at IS NULL",
        "deleted_messages": "FROM message m JOIN conversation c ON c.id = m.conversation_id "
        "WHERE m.deleted_at IS NOT NULL AND c.deleted_at IS NULL",
        "cut_answers": "FROM message WHERE deleted_at IS NULL AND status = 'partial'",
        "changes_to_undo": "FROM change WHERE undone = 0",
    }
    found = {name: int(db.execute(f"SELECT count(*) {rest}").fetchone()[0]) for name, rest in asked.items()}
    tokens, characters = db.execute(
        "SELECT coalesce(sum(length(token_ids)) / 4, 0), coalesce(sum(length(text)), 0) FROM message"
    ).fetchone()
    pages, size = db.execute("PRAGMA page_count").fetchone()[0], db.execute("PRAGMA page_size").fetchone()[0]
    return {**found, "generated_tokens": tokens, "characters": characters, "bytes_on_disk": pages * size}


def draft(db: sqlite3.Connection, conversation_id: str) -> str:
    row = db.execute("SELECT draft FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
    if row is None:
        raise MissingRowError("conversation", conversation_id)
    return str(row[0])


def keep_draft(db: sqlite3.Connection, conversation_id: str, text: str) -> None:
    update_conversation(db, conversation_id, "draft = ?", (storable(text),))


def undo_delete(db: sqlite3.Connection, conversation_id: str) -> None:
    update_conversation(db, conversation_id, "deleted_at = ?", (None,))
    db.execute("DELETE FROM change WHERE conversation_id = ? AND what = 'delete conversation'", (conversation_id,))


def _remove_conversations(db: sqlite3.Connection, *, deleted_before: float, empty_before: float) -> int:
    """Remove for good what was deleted, and what has stayed without a message, for long enough.

    One in which an answer is being written stays until that has ended.
    """
    rows = db.execute(
        "SELECT c.id FROM conversation c WHERE (c.deleted_at < ? OR (c.created_at < ? AND c.foreign_json IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM message m WHERE m.conversation_id = c.id AND m.role <> 'system'))) "
        "AND NOT EXISTS (SELECT 1 FROM answer_in_progress p JOIN message m ON m.id = p.message_id "
        "WHERE m.conversation_id = c.id)",
        (deleted_before, empty_before),
    ).fetchall()
    db.executemany("DELETE FROM message WHERE conversation_id = ?", rows)
    db.executemany("DELETE FROM conversation WHERE id = ?", rows)
    return len(rows)


class Listing(StoreFile):
    """Each operation is one transaction; what a user does can be undone with `ConversationStore.undo`."""

    list_conversations = reads(conversation_summaries)
    tags = reads(tags)
    find_ids = reads(find_ids)
    put_away_last = reads(put_away_last)
    counts = reads(counts)
    draft = reads(draft)
    keep_draft = writes(keep_draft)
    undo_delete = writes(undo_delete)

    def rename(self, conversation_id: str, title: str) -> None:
        """Give a title; a blank one brings back the automatic one, the first line of the user's first message."""
        with self._transaction() as db:
            given = clean_title(title)
            shown = given or automatic_title(db, conversation_id)
            by = "user" if given else shown and "first line"
            steps = changes.set_columns(db, "conversation", conversation_id, title=shown, title_by=by)
            changes.record(db, conversation_id, "rename", steps, self._clock())

    def set_model_title(self, conversation_id: str, title: str) -> bool:
        """Keep the title that a model made, unless a user gave one or it is blank; whether it was kept.

        Nobody asked for it, so it is none of the changes that can be undone; `rename` with a blank one takes it back.
        """
        shown = clean_title(title)
        with self._transaction() as db:
            row = db.execute("SELECT title_by FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                raise MissingRowError("conversation", conversation_id)
            if shown is None or row[0] == "user":
                return False
            values = (shown, "model")
            update_conversation(db, conversation_id, "title = ?, title_by = ?", values)
        return True

    def set_tags(self, conversation_id: str, tags: Sequence[str], *, undoable: bool = True) -> tuple[str, ...]:
        """Replace the tags of a conversation; they come back as they are kept, one line each.

        What nobody asked for is not `undoable`.
        """
        kept = clean_tags(list(tags))
        with self._transaction() as db:
            steps = changes.set_tags(db, conversation_id, kept)
            if undoable:
                self._record("tag", conversation_id, steps)
        return tuple(kept)

    def pin_conversation(self, conversation_id: str, pinned: bool) -> None:
        """Keep a conversation at the head of the list, or no longer."""
        with self._transaction() as db:
            steps = changes.set_columns(db, "conversation", conversation_id, pinned=int(pinned))
            self._record("pin", conversation_id, steps)

    def archive(self, conversation_id: str, archived: bool) -> None:
        with self._transaction() as db:
            now = self._clock() if archived else None
            steps = changes.set_columns(db, "conversation", conversation_id, archived_at=now)
            self._record("archive", conversation_id, steps)

    def pin(self, message_id: str, pinned: bool) -> Message:
        """Have the model go on seeing a message when older ones are left out, or no longer."""
        return self._mark(message_id, "pin", pinned=int(pinned))

    def leave_out(self, message_id: str, left_out: bool) -> Message:
        """Have the model not see a message, or see it again."""
        return self._mark(message_id, "leave out", left_out=int(left_out))

    def _mark(self, message_id: str, what: changes.What, **values: int) -> Message:
        with self._transaction() as db:
            steps = changes.set_columns(db, "message", message_id, **values)
            row = db.execute("SELECT conversation_id FROM message WHERE id = ?", (message_id,)).fetchone()
            self._record(what, row[0], steps)
            return load_message(db, message_id)

    def delete(self, conversation_id: str) -> None:
        """Take it off the list; `undo_delete` brings it back until `purge` removes it for good."""
        with self._transaction() as db:
            steps = changes.set_columns(db, "conversation", conversation_id, deleted_at=self._clock())
            self._record("delete conversation", conversation_id, steps)

    def is_deleted(self, conversation_id: str) -> bool:
        """Whether it was taken off the list, or for good."""
        with self._transaction(write=False) as db:
            row = db.execute("SELECT deleted_at FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
        return row is None or row[0] is not None

    def purge(self) -> int:
        """Remove for good what was deleted 30 days ago, and conversations without a message that are a day old.

        Changes of before then can no longer be undone. Returns how many conversations were removed.
        """
        now = self._clock()
        with self._transaction() as db:
            changes.forget_changes(db, before=now - KEEP_DELETED_SECONDS)
            return _remove_conversations(
                db, deleted_before=now - KEEP_DELETED_SECONDS, empty_before=now - KEEP_EMPTY_SECONDS
            )

    def purge_deleted(self) -> Purged:
        """Remove for good all that is deleted now, however short ago; what was done beside it can not be undone either.

        Only what is being written to stays. The room in the file is used again, and copies of the file are not touched.
        """
        self.recover()
        with self._transaction() as db:
            conversations = _remove_conversations(db, deleted_before=math.inf, empty_before=-math.inf)
            return Purged(conversations, changes.forget_deletions(db))

    def check(self, *, repair: bool = False) -> list[Problem]:
        """What is wrong with the database, and with `repair`, after a backup, what could be done about it.

        Raises:
            StoreError: it is so damaged that it cannot even be looked at, or the backup cannot be made.
        """
        # No start needs it.
        from exlchat.chat.repair.check import BrokenError, Problem, check

        with self._lock, explained(self.path):
            try:
                return check(self._db, self.path, repair=repair)
            except BrokenError as error:
                # Only a file that nobody has open can be replaced by what is left of it.
                return [Problem(line) for line in error.lines]

    def _record(self, what: What, conversation_id: str, steps: list[Step]) -> None:
        changes.record(self._db, conversation_id, what, steps, self._clock())
