"""The part of the store that keeps conversations in order: titles, tags, marks, drafts, search, what was deleted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from exlchat.chat.model import ConversationSummary, Message
from exlchat.chat.store import changes, statements
from exlchat.chat.store.changes import Step, What
from exlchat.chat.store.database import MissingRowError, explained
from exlchat.chat.store.file import StoreFile
from exlchat.chat.store.search import SearchHit, search
from exlchat.chat.store.statements import Which
from exlchat.chat.store.tree_rows import clean_tags
from exlchat.chat.titles import clean_title
from exlchat.untrusted.text import storable

if TYPE_CHECKING:
    from exlchat.chat.repair.check import Problem

KEEP_DELETED_SECONDS = 30 * 86400.0
KEEP_EMPTY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Purged:
    """How much was removed for good; `messages` are those of conversations that stay."""

    conversations: int
    messages: int


class ShelfStore(StoreFile):
    """Each operation is one transaction; what a user does can be undone with `TreeStore.undo`."""

    def list_conversations(self, which: Which = "kept") -> list[ConversationSummary]:
        """Pinned ones first, else newest first, without those in which nothing was ever said.

        `message_count` counts all branches, system messages and what was deleted apart. `which` asks for those that are
        neither archived nor deleted, for archived or for deleted ones.
        """
        with self._transaction(write=False) as db:
            return statements.conversation_summaries(db, which)

    def search(self, text: str, limit: int = 20) -> list[SearchHit]:
        """Messages and titles with all words of `text`, or words that begin so; the best first, deleted ones left out.

        `jump` shows the message of a hit.
        """
        with self._transaction(write=False) as db:
            return search(db, text, limit)

    def rename(self, conversation_id: str, title: str) -> None:
        """Give a title; a blank one brings back the automatic one, the first line of the user's first message."""
        with self._transaction() as db:
            given = clean_title(title)
            shown = given or statements.automatic_title(db, conversation_id)
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
            statements.update_conversation(db, conversation_id, "title = ?, title_by = ?", values)
        return True

    def set_tags(self, conversation_id: str, tags: Sequence[str]) -> tuple[str, ...]:
        """Replace the tags of a conversation; they come back as they are kept, one line each."""
        kept = clean_tags(list(tags))
        with self._transaction() as db:
            self._record("tag", conversation_id, changes.set_tags(db, conversation_id, kept))
        return tuple(kept)

    def tags(self, conversation_id: str) -> tuple[str, ...]:
        """The tags of a conversation, sorted."""
        with self._transaction(write=False) as db:
            rows = db.execute("SELECT name FROM tag WHERE conversation_id = ? ORDER BY name", (conversation_id,))
            return tuple(name for (name,) in rows)

    def pin_conversation(self, conversation_id: str, pinned: bool) -> None:
        """Keep a conversation at the head of the list, or no longer."""
        with self._transaction() as db:
            steps = changes.set_columns(db, "conversation", conversation_id, pinned=int(pinned))
            self._record("pin", conversation_id, steps)

    def archive(self, conversation_id: str, archived: bool) -> None:
        """Take a conversation off the list without deleting it, or put it back."""
        with self._transaction() as db:
            now = self._clock() if archived else None
            steps = changes.set_columns(db, "conversation", conversation_id, archived_at=now)
            self._record("archive", conversation_id, steps)

    def pin(self, message_id: str, pinned: bool) -> Message:
        """Have the model go on seeing a message when older ones are left out, or no longer."""
        with self._transaction() as db:
            steps = changes.set_columns(db, "message", message_id, pinned=int(pinned))
            row = db.execute("SELECT conversation_id FROM message WHERE id = ?", (message_id,)).fetchone()
            self._record("pin", row[0], steps)
            return statements.load_message(db, message_id)

    def delete(self, conversation_id: str) -> None:
        """Take it off the list; `undo_delete` brings it back until `purge` removes it for good."""
        with self._transaction() as db:
            steps = changes.set_columns(db, "conversation", conversation_id, deleted_at=self._clock())
            self._record("delete conversation", conversation_id, steps)

    def undo_delete(self, conversation_id: str) -> None:
        """Put a deleted conversation back on the list."""
        with self._transaction() as db:
            statements.update_conversation(db, conversation_id, "deleted_at = ?", (None,))
            db.execute(
                "DELETE FROM change WHERE conversation_id = ? AND what = 'delete conversation'", (conversation_id,)
            )

    def purge(self) -> int:
        """Remove for good what was deleted 30 days ago, and conversations without a message that are a day old.

        Changes of before then can no longer be undone. Returns how many conversations were removed.
        """
        now = self._clock()
        with self._transaction() as db:
            changes.forget_changes(db, before=now - KEEP_DELETED_SECONDS)
            return statements.remove_conversations(
                db, deleted_before=now - KEEP_DELETED_SECONDS, empty_before=now - KEEP_EMPTY_SECONDS
            )

    def purge_deleted(self) -> Purged:
        """Remove for good all that is deleted now, however short ago; what was done beside it can not be undone either.

        Only what is being written to stays. The room in the file is used again, and copies of the file are not touched.
        """
        self.recover()
        with self._transaction() as db:
            conversations = statements.remove_conversations(db, deleted_before=math.inf, empty_before=-math.inf)
            return Purged(conversations, changes.forget_deletions(db))

    def put_away_last(self, which: Literal["archived", "deleted"]) -> str | None:
        """The id of the conversation that was archived, or deleted, last."""
        with self._transaction(write=False) as db:
            return statements.put_away_last(db, which)

    def find_ids(self, table: Literal["conversation", "message"], beginning: str, limit: int = 2) -> list[str]:
        """Ids that begin so, deleted conversations' too; the whole id itself first."""
        with self._transaction(write=False) as db:
            rows = db.execute(
                f"SELECT id FROM {table} WHERE id = ?1 OR substr(id, 1, length(?1)) = ?1 ORDER BY id <> ?1 LIMIT ?2",
                (storable(beginning), limit),
            )
            return [ident for (ident,) in rows]

    def counts(self) -> dict[str, int]:
        """How much there is of what, by name."""
        with self._transaction(write=False) as db:
            return statements.counts(db)

    def draft(self, conversation_id: str) -> str:
        """What stands in the composer of a conversation."""
        with self._transaction(write=False) as db:
            row = db.execute("SELECT draft FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                raise MissingRowError("conversation", conversation_id)
            return str(row[0])

    def keep_draft(self, conversation_id: str, text: str) -> None:
        """Keep what stands in the composer of a conversation."""
        with self._transaction() as db:
            statements.update_conversation(db, conversation_id, "draft = ?", (storable(text),))

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
