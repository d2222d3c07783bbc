"""How a persona begins a conversation, and how another takes over in the middle of one: as messages of the tree."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.chat.conversation import Role
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.told import Spoken
from exlchat.chat.tree import ConversationTree, TreeMessage


@dataclass(frozen=True, slots=True)
class Opening:
    """The first messages of a conversation.

    Args:
        messages: parents before children; the greetings are siblings, all under the system message.
        tip_id: the greeting that was chosen, else the system message.
    """

    messages: tuple[TreeMessage, ...]
    tip_id: str


def opening(persona: FrozenPersona, *, now: float, parent_id: str | None = None, greeting: int = 0) -> Opening:
    """The messages with which `persona` begins: who it is, with its examples, and its greetings.

    Examples are no messages of the tree: nobody has said them, and a conversation would be called after the first.

    Args:
        persona: frozen.
        now: Unix seconds.
        parent_id: of the first message; `None` begins a conversation.
        greeting: which of its greetings is shown, counted from 0.

    Raises:
        ValueError: there is no such greeting.
    """
    if persona.greetings and not 0 <= greeting < len(persona.greetings):
        raise ValueError(f"there is no greeting {greeting + 1}; {persona.name} has {len(persona.greetings)}")
    first = takes_over(persona, parent_id=parent_id, now=now)
    greetings = [_message(first.id, "assistant", text, now, None) for text in persona.greetings]
    return Opening((first, *greetings), greetings[greeting].id if greetings else first.id)


def opening_tree(persona: FrozenPersona, *, now: float, greeting: int = 0) -> ConversationTree:
    """A new conversation that `persona` begins, for `ConversationStore.write_tree`."""
    begun = opening(persona, now=now, greeting=greeting)
    return ConversationTree(title=None, created_at=now, updated_at=now, tip_id=begun.tip_id, messages=begun.messages)


def takes_over(persona: FrozenPersona, *, parent_id: str | None, now: float) -> TreeMessage:
    """The system message with which `persona` speaks from here on: its text, and all that was frozen of it.

    An empty text takes the system prompt of whoever spoke before away.
    """
    return _message(parent_id, "system", persona.system_text, now, persona.as_json())


def persona_of(messages: Sequence[Spoken]) -> FrozenPersona | None:
    """Who speaks at the end of a branch; `None` where no persona does, or a plain system prompt came after it.

    Raises:
        PersonaError: what was kept of it is damaged.
    """
    last = next((one for one in reversed(messages) if one.role == "system"), None)
    if last is None or last.persona is None:
        return None
    return FrozenPersona.from_json(last.persona)


def greeting_place(messages: Sequence[Spoken]) -> int | None:
    """Which of the persona's greetings stands on the branch, 0 the first; `None` if none of them does."""
    persona = persona_of(messages)
    said = next((one for one in messages if one.role == "assistant"), None)
    if persona is None or said is None or said.text not in persona.greetings:
        return None
    return persona.greetings.index(said.text)


def _message(parent_id: str | None, role: Role, text: str, now: float, persona: dict[str, Any] | None) -> TreeMessage:
    return TreeMessage(uuid.uuid4().hex, parent_id, role, text, now, persona=persona)
