"""The part of the store that works on the tree of a conversation. Messages never change; a tip moves."""

from __future__ import annotations

from collections.abc import Collection

from exlchat.chat.model import Conversation, ConversationTree, Message
from exlchat.chat.store import branches, changes, statements, tree_rows
from exlchat.chat.store.changes import Change
from exlchat.chat.store.file import StoreFile, new_id


class TreeStore(StoreFile):
    """Each operation is one transaction, and each but `write_tree` can be undone."""

    def edit(self, message_id: str, text: str, *, carry: bool = False) -> Message:
        """Put a changed copy beside a message, whoever wrote it, and show that; the old one stays an alternative.

        Args:
            message_id: of any message that is not being written.
            text: the new text.
            carry: let copies of what followed stand below the new one too; else it is the end of its branch, and is
                there to be answered or gone on from.
        """
        with self._transaction() as db:
            now = self._clock()
            message, steps = branches.edit(db, message_id, text, carry=carry, new_id=new_id, now=now)
            conversation_id = branches.conversation_of(db, message.id)
            changes.record(db, conversation_id, "edit", steps, now)
            statements.update_conversation(db, conversation_id, "updated_at = ?", (now,))
        return message

    def branch_off(self, message_id: str) -> Conversation:
        """A new conversation that begins with copies of the messages from the first to this one."""
        with self._transaction() as db:
            now, ident = self._clock(), new_id()
            source = branches.branch_off(db, message_id, ident, new_id, now)
            changes.record(db, source, "branch", changes.branched(db, ident, now), now)
            return statements.load_conversation(db, ident)

    def jump(self, message_id: str) -> Conversation:
        """Show a message: an alternative, the hit of a search, the end of another branch.

        Where it is not on the branch that is shown, the newest branch below it is shown from now on.
        """
        with self._transaction() as db:
            conversation_id, steps = branches.jump(db, message_id)
            changes.record(db, conversation_id, "jump", steps, self._clock())
            return statements.load_conversation(db, conversation_id)

    def delete_from(self, message_id: str) -> Conversation:
        """Hide a message and everything below it; where it was shown, another answer or what stands before is shown.

        Raises:
            StoreError: an answer is being written there.
        """
        self.recover()
        with self._transaction() as db:
            now = self._clock()
            conversation_id, steps = branches.delete_from(db, message_id, now)
            changes.record(db, conversation_id, "delete messages", steps, now)
            return statements.load_conversation(db, conversation_id)

    def undo(self, conversation_id: str) -> Change | None:
        """Take back the newest change of a conversation; `None` when there is none left.

        An edit or a jump is taken back by showing what was shown before: what was written stays an alternative, and
        nothing that was written since is hidden. A conversation that was branched off stays where somebody has written
        in it; `Change.kept` names it then.
        """
        with self._transaction() as db:
            return changes.undo(db, conversation_id)

    def redo(self, conversation_id: str) -> Change | None:
        """Do again what was undone last; `None` when nothing was, or something was done or written since."""
        with self._transaction() as db:
            return changes.redo(db, conversation_id)

    def places(self, conversation_id: str) -> dict[str, tuple[int, int]]:
        """Which of how many alternatives, from 1, each message is that has any; oldest first, without hidden ones."""
        with self._transaction(write=False) as db:
            return branches.places(db, conversation_id)

    def conversations_of(self, message_ids: Collection[str]) -> set[str]:
        """The ids of the conversations that messages belong to, hidden ones too."""
        places = ", ".join("?" * len(message_ids))
        with self._transaction(write=False) as db:
            rows = db.execute(f"SELECT conversation_id FROM message WHERE id IN ({places})", tuple(message_ids))
            return {ident for (ident,) in rows}

    def read_tree(self, conversation_id: str) -> ConversationTree:
        """A conversation with all its branches, hidden messages too."""
        with self._transaction(write=False) as db:
            return tree_rows.read_tree(db, conversation_id)

    def write_tree(self, tree: ConversationTree) -> str:
        """Keep a conversation as a new one and return its id; ids that are taken are replaced.

        Raises:
            StoreError: it is no tree, or cannot be written; nothing of it is then kept.
        """
        with self._transaction() as db:
            return tree_rows.write_tree(db, tree, new_id=new_id, now=self._clock())
