"""Answers that ended while the database could not be written: on a full disk, say. They wait here until it can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exlchat.chat.model import Conversation, ConversationTree, Message
    from exlchat.chat.store.conversations import ConversationStore


class UnkeptAnswers:
    """Belongs to one session and runs on its thread; on disk each of its answers has only its beginning."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._messages: dict[str, Message] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Message) -> None:
        self._messages[message.id] = message

    def save(self) -> None:
        """Put them on disk.

        Raises:
            StoreError: that is still not possible; those not written go on waiting.
        """
        for one in list(self._messages.values()):
            self._store.close_answer(one.id, one.text, one.token_ids, one.status, record=one.record)
            del self._messages[one.id]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._messages)

    def forget(self) -> None:
        """They are kept in another way."""
        self._messages.clear()

    def in_tree(self, tree: ConversationTree) -> ConversationTree:
        """A tree from disk with these answers in full."""

        def whole(one: Message) -> Message:
            said = self._messages.get(one.id)
            if said is None:
                return one
            return replace(one, text=said.text, token_ids=said.token_ids, status=said.status, record=said.record)

        return replace(tree, messages=tuple(map(whole, tree.messages)))

    def whole(self, conversation: Conversation) -> Conversation:
        branch = tuple(self._messages.get(message.id, message) for message in conversation.branch)
        return replace(conversation, branch=branch)
