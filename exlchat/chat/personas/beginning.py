"""A conversation that a persona begins, on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from exlchat.chat.conversation import Conversation, Message, Role
from exlchat.chat.personas.frozen import FrozenPersona


class BeginningStore(Protocol):
    """What of a `ConversationStore` is needed to begin a conversation."""

    def create_conversation(self, title: str | None = None) -> Conversation:
        """A new, empty conversation."""

    def add_message(
        self,
        conversation_id: str,
        role: Role,
        text: str,
        *,
        parent_id: str | None = None,
        persona: Mapping[str, Any] | None = None,
    ) -> Message:
        """Append a message and move the tip to it."""

    def set_tip(self, conversation_id: str, message_id: str | None) -> Conversation:
        """Let the branch end at a message."""


def begin_conversation(
    store: BeginningStore, persona: FrozenPersona, *, system: str | None = None, greets: bool = True
) -> Conversation:
    """A new conversation with the persona's system prompt and greetings, the first greeting shown.

    Args:
        store: where.
        persona: who.
        system: in the place of its system prompt.
        greets: whether its greetings are put there.
    """
    conversation = store.create_conversation()
    text = persona.system_text if system is None else system
    # Even an empty one says who speaks, which lore and records ask for.
    tip_id = store.add_message(conversation.id, "system", text, persona=persona.as_json()).id
    greetings = persona.greetings if greets else ()
    told = [store.add_message(conversation.id, "assistant", text, parent_id=tip_id).id for text in greetings]
    return store.set_tip(conversation.id, told[0] if told else tip_id)
