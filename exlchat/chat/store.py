"""Conversations on disk: every message is committed before the call returns, an answer is journalled while it grows."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from exlchat.chat import database, statements
from exlchat.chat.conversation import AnswerRecord, Conversation, ConversationSummary, Message, MessageStatus, Role
from exlchat.chat.database import StoreError
from exlchat.chat.plain_text import storable
from exlchat.chat.writer import Writer

__all__ = ["ConversationStore", "StoreError"]

KEEP_DELETED_SECONDS = 30 * 86400.0
KEEP_EMPTY_SECONDS = 86400.0


class ConversationStore:
    """The conversations in one SQLite file, or in memory only (`path=None`) for answers that are not to be kept.

    Every method may be called from any thread: one connection, one lock. A statement takes well under a millisecond
    and SQLite lets one writer in at a time anyway, so a connection per thread would only add ways to be busy.
    Every method raises `StoreError`; what could not be written is then still in the caller's hands.

    Answers that a crash left unfinished become `partial` on opening; `recovered` says how many there were.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._writer = Writer(path)
        self._db = database.open_database(path)
        try:
            self.recovered = self.recover()
        except StoreError:
            self._db.close()
            raise

    def close(self) -> None:
        """Let go of the file; every later call raises `StoreError`."""
        with self._lock, database.explained(self.path):
            self._db.close()
            self._writer.leave()

    # Conversations

    def create_conversation(self, title: str | None = None) -> Conversation:
        """A new, empty conversation; it is listed once it has a message of the user."""
        now = self._clock()
        ident = _new_id()
        with self._transaction() as db:
            db.execute(
                "INSERT INTO conversation (id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
                (ident, statements.clean_title(title or ""), now, now),
            )
            return statements.load_conversation(db, ident)

    def list_conversations(self) -> list[ConversationSummary]:
        """Newest first, without deleted and empty ones. `message_count` counts all branches, system messages apart."""
        with self._transaction(write=False) as db:
            return statements.conversation_summaries(db)

    def load(self, conversation_id: str) -> Conversation:
        """The conversation with the branch that ends at its tip."""
        with self._transaction(write=False) as db:
            return statements.load_conversation(db, conversation_id)

    def rename(self, conversation_id: str, title: str) -> None:
        """Give a title; a blank one brings back the automatic one, the first line of the user's first message."""
        with self._transaction() as db:
            shown = statements.clean_title(title) or statements.automatic_title(db, conversation_id)
            statements.update_conversation(db, conversation_id, "title = ?", (shown,))

    def delete(self, conversation_id: str) -> None:
        """Take it off the list; `undo_delete` brings it back until `purge` removes it for good."""
        with self._transaction() as db:
            statements.update_conversation(db, conversation_id, "deleted_at = ?", (self._clock(),))

    def undo_delete(self, conversation_id: str) -> None:
        """Put a deleted conversation back on the list."""
        with self._transaction() as db:
            statements.update_conversation(db, conversation_id, "deleted_at = ?", (None,))

    def purge(self) -> int:
        """Remove for good what was deleted 30 days ago, and conversations without a message that are a day old."""
        now = self._clock()
        with self._transaction() as db:
            return statements.remove_conversations(
                db, deleted_before=now - KEEP_DELETED_SECONDS, empty_before=now - KEEP_EMPTY_SECONDS
            )

    # Messages

    def set_tip(self, conversation_id: str, message_id: str | None) -> Conversation:
        """Let the branch end at `message_id`, or before the first message; messages behind it stay in the tree."""
        with self._transaction() as db:
            statements.move_tip(db, conversation_id, message_id, self._clock())
            return statements.load_conversation(db, conversation_id)

    def add_message(self, conversation_id: str, role: Role, text: str, *, parent_id: str | None = None) -> Message:
        """Append a message under `parent_id` (by default under the tip) and move the tip to it.

        The text is kept as it is, but for lone surrogates, which become U+FFFD. Answers of a model go through
        `begin_answer`.
        """
        with self._transaction() as db:
            parent = parent_id or statements.tip_of(db, conversation_id)
            message = Message(_new_id(), parent, role, storable(text), self._clock())
            statements.insert_message(db, conversation_id, message)
        return message

    def pin(self, message_id: str, pinned: bool) -> Message:
        """Have the model go on seeing a message when older ones are left out, or no longer."""
        with self._transaction() as db:
            statements.pin_message(db, message_id, pinned)
            return statements.load_message(db, message_id)

    def keep_summary(self, message_id: str, summary: str) -> None:
        """Keep what a model has made of all messages before this one."""
        with self._transaction() as db:
            statements.keep_summary(db, message_id, summary)

    def message(self, message_id: str) -> Message:
        """One message by its id."""
        with self._transaction(write=False) as db:
            return statements.load_message(db, message_id)

    def branch(self, message_id: str | None) -> tuple[Message, ...]:
        """The messages from the first one to `message_id`, whether it is on the present branch or not."""
        with self._transaction(write=False) as db:
            return statements.load_branch(db, message_id)

    def alternatives(self, message_id: str) -> tuple[Message, ...]:
        """All messages of the same role under the same parent, oldest first, `message_id` among them."""
        with self._transaction(write=False) as db:
            return statements.alternatives(db, message_id)

    # The answer being written

    def begin_answer(
        self,
        conversation_id: str,
        parent_id: str | None,
        *,
        text: str = "",
        token_ids: Sequence[int] = (),
        record: AnswerRecord | None = None,
        system: str | None = None,
    ) -> Message:
        """A new answer under `parent_id` with status `streaming`; the tip moves to it.

        Args:
            conversation_id: where.
            parent_id: what it answers.
            text: what it starts from when a cut answer is continued.
            token_ids: the ids of `text`.
            record: what is known already, so that an answer cut by a crash still says who wrote it.
            system: a system message to put between `parent_id` and the answer.
        """
        now = self._clock()
        with self._transaction() as db:
            tip_id = statements.tip_of(db, conversation_id)
            self._writer.announce()
            if system is not None:
                told = Message(_new_id(), parent_id, "system", system, now)
                statements.insert_message(db, conversation_id, told)
                parent_id = told.id
            message = Message(_new_id(), parent_id, "assistant", text, now, "streaming", tuple(token_ids), record)
            statements.insert_message(db, conversation_id, message)
            db.execute("INSERT INTO answer_in_progress VALUES (?, ?, ?)", (message.id, self._writer.name, tip_id))
        return message

    def journal(self, message_id: str, text: str, token_ids: Sequence[int]) -> None:
        """Put the whole answer so far on disk."""
        with self._transaction() as db:
            statements.write_answer(db, message_id, text=text, token_ids=token_ids)

    def close_answer(
        self,
        message_id: str,
        text: str,
        token_ids: Sequence[int],
        status: MessageStatus,
        *,
        record: AnswerRecord | None = None,
    ) -> Message:
        """Write the answer for good; without a `record` the one given at its beginning stays."""
        with self._transaction() as db:
            statements.write_answer(db, message_id, text=text, token_ids=token_ids, status=status, record=record)
            db.execute("DELETE FROM answer_in_progress WHERE message_id = ?", (message_id,))
            db.execute(
                "UPDATE conversation SET updated_at = ? WHERE id = (SELECT conversation_id FROM message WHERE id = ?)",
                (self._clock(), message_id),
            )
            return statements.load_message(db, message_id)

    def discard_answer(self, message_id: str) -> None:
        """Remove an answer that came to nothing; the tip goes back to where it was before."""
        with self._transaction() as db:
            statements.discard_answer(db, message_id)

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

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock, database.transaction(self._db, self.path, write=write):
            yield self._db


def _new_id() -> str:
    return uuid.uuid4().hex
