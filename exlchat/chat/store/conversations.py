"""Conversations on disk: every message is committed before the call returns, an answer is journalled while it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exlchat.chat.model import AnswerRecord, Conversation, ConversationTree, Message, MessageStatus, Role, clean_title
from exlchat.chat.speakers import speaks_as
from exlchat.chat.store import changes, kept_settings, statements, tree_rows
from exlchat.chat.store.branches import Branches
from exlchat.chat.store.database import LostFileError, StoreError, explained, is_read_only
from exlchat.chat.store.file import new_id, reads, writes
from exlchat.chat.store.listing import Listing
from exlchat.chat.store.search import search, search_inside
from exlchat.untrusted.text import storable

__all__ = ["ConversationStore", "LostFileError", "StoreError"]


class ConversationStore(Branches, Listing):
    """The conversations in one SQLite file, or in memory only (`path=None`) for answers that are not to be kept.

    Every method may be called from any thread: one connection, one lock. A statement takes well under a millisecond
    and SQLite lets one writer in at a time anyway, so a connection per thread would only add ways to be busy.
    Every method raises `StoreError`; what could not be written is then still in the caller's hands.

    With `or_read` it opens for reading only where the disk is full.

    Answers that a crash left unfinished become `partial` on opening; `recovered` says how many there were.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time, or_read: bool = False) -> None:
        super().__init__(path, clock=clock, or_read=or_read)
        try:
            # On a full disk what is there can be read, and is left as it is.
            self.recovered = 0 if is_read_only(self._db) else self.recover()
            with explained(path):
                self._writer.sweep()
        except StoreError:
            self._db.close()
            raise

    load = reads(statements.load_conversation)
    message = reads(statements.load_message)
    branch = reads(statements.load_branch)
    alternatives = reads(statements.alternatives)
    conversations_of = reads(statements.conversations_of)
    search = reads(search)
    search_inside = reads(search_inside)
    read_tree = reads(tree_rows.read_tree)
    keep_summary = writes(statements.keep_summary)
    keep_told = writes(statements.keep_told)
    discard_answer = writes(statements.discard_answer)
    undo = writes(changes.undo)
    redo = writes(changes.redo)

    # Conversations

    def create_conversation(self, title: str | None = None) -> Conversation:
        """A new, empty conversation; it is listed once it has a message of the user."""
        now = self._clock()
        ident = new_id()
        with self._transaction() as db:
            given = clean_title(title or "")
            db.execute(
                "INSERT INTO conversation (id, title, title_by, created_at, updated_at) VALUES (?, ?, ?, ?, ?)",
                (ident, given, given and "user", now, now),
            )
            return statements.load_conversation(db, ident)

    def set_tip(self, conversation_id: str, message_id: str | None) -> Conversation:
        """Let the branch end at `message_id`, or before the first message; messages behind it stay in the tree."""
        with self._transaction() as db:
            statements.move_tip(db, conversation_id, message_id, self._clock())
            return statements.load_conversation(db, conversation_id)

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        parent_id: str | None = None,
        persona: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        change: changes.What | None = None,
    ) -> Message:
        """Append a message under `parent_id` (by default under the tip) and move the tip to it.

        The text is kept as it is, but for lone surrogates, which become U+FFFD. Answers of a model go through
        `begin_answer`. `persona` of a system message is what of a persona was frozen into it, a JSON object, `settings`
        how the conversation is spoken to from here on. `change` names what an undo takes back with it.
        """
        with self._transaction() as db:
            tip_id = statements.tip_of(db, conversation_id)
            now = self._clock()
            message = Message(
                new_id(), parent_id or tip_id, role, storable(text), now, persona=persona, settings=settings
            )
            statements.insert_message(db, conversation_id, message)
            if change is not None:
                steps = changes.shown_moved(conversation_id, tip_id, message.id)
                changes.record(db, conversation_id, change, steps, now)
        return message

    def keep_settings(self, conversation_id: str, settings: Mapping[str, Any]) -> str:
        """See `kept_settings`."""
        with self._transaction() as db:
            return kept_settings.keep_settings(db, conversation_id, settings, now=self._clock())

    # The answer being written

    def begin_answer(
        self,
        conversation_id: str,
        parent_id: str | None,
        *,
        text: str = "",
        token_ids: Sequence[int] = (),
        record: AnswerRecord | None = None,
        system: Message | None = None,
        speaker: str | None = None,
        settings: Mapping[str, Any] | None = None,
        edited_from: str | None = None,
        undoable: bool = False,
    ) -> Message:
        """A new answer under `parent_id` with status `streaming`; the tip moves to it.

        Args:
            conversation_id: where.
            parent_id: what it answers.
            text: what it starts from when a cut answer is continued.
            token_ids: the ids of `text`.
            record: what is known already, so that an answer cut by a crash still says who wrote it.
            system: what is said by whoever speaks, persona and text of it, to put between `parent_id` and the answer.
            speaker: who of a group gives it.
            settings: how the conversation is spoken to from it on, where that was said on another branch.
            edited_from: the answer that it goes on from.
            undoable: another token was taken than in `edited_from`; an undo shows what was shown before.
        """
        now = self._clock()
        with self._transaction() as db:
            tip_id = statements.tip_of(db, conversation_id)
            self._writer.announce()
            if system is not None:
                told = Message(new_id(), parent_id, "system", system.text, now, persona=system.persona)
                statements.insert_message(db, conversation_id, told)
                parent_id = told.id
            message = Message(
                new_id(),
                parent_id,
                "assistant",
                text,
                now,
                "streaming",
                tuple(token_ids),
                record,
                persona=None if speaker is None else speaks_as(speaker),
                edited_from=edited_from,
                settings=settings,
            )
            statements.insert_message(db, conversation_id, message)
            db.execute("INSERT INTO answer_in_progress VALUES (?, ?, ?)", (message.id, self._writer.name, tip_id))
            if undoable:
                steps = changes.shown_moved(conversation_id, tip_id, message.id)
                changes.record(db, conversation_id, "another token", steps, now)
        return message

    def journal(self, message_id: str, text: str, token_ids: Sequence[int], *, thinking: str | None = None) -> None:
        """Put the whole answer so far on disk; `thinking` is what came before it, `None` leaves what there is."""
        with self._transaction() as db:
            statements.write_answer(db, message_id, text=text, token_ids=token_ids, thinking=thinking)

    def close_answer(
        self,
        message_id: str,
        text: str,
        token_ids: Sequence[int],
        status: MessageStatus,
        *,
        record: AnswerRecord | None = None,
        thinking: str | None = None,
    ) -> Message:
        """Write the answer for good; without a `record` or `thinking` what was written before stays."""
        with self._transaction() as db:
            statements.write_answer(
                db, message_id, text=text, token_ids=token_ids, status=status, record=record, thinking=thinking
            )
            db.execute("DELETE FROM answer_in_progress WHERE message_id = ?", (message_id,))
            db.execute(
                "UPDATE conversation SET updated_at = ? WHERE id = (SELECT conversation_id FROM message WHERE id = ?)",
                (self._clock(), message_id),
            )
            return statements.load_message(db, message_id)

    # Whole conversations

    def write_tree(self, tree: ConversationTree) -> str:
        """Keep a conversation as a new one and return its id; ids that are taken are replaced.

        Raises:
            StoreError: it is no tree, or cannot be written; nothing of it is then kept.
        """
        with self._transaction() as db:
            return tree_rows.write_tree(db, tree, now=self._clock())

    def begin_anew(self, trees: Sequence[ConversationTree]) -> list[str]:
        """Go on with the file that lies at the path now, made if there is none, and keep these conversations in it.

        The ids by which they are known there. One that is there already with all its messages is not put there twice.

        Raises:
            StoreError: that cannot be done; the store is as it was.
        """
        now = self._clock()
        return self._go_on_with(
            lambda db: [
                str(tree.id) if tree_rows.holds(db, tree) else tree_rows.write_tree(db, tree, now=now) for tree in trees
            ]
        )
