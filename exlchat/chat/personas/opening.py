"""How a persona begins a conversation, and how another takes over in the middle of one: as messages of the tree."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from exlchat.chat.model import Conversation, ConversationTree, Message, Role
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.speakers import GROUP


class BeginningStore(Protocol):
    def write_tree(self, tree: ConversationTree) -> str: ...

    def load(self, conversation_id: str) -> Conversation: ...


def begin_conversation(
    store: BeginningStore,
    persona: FrozenPersona,
    *,
    system: str | None = None,
    greets: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Conversation:
    """A new conversation that `persona` begins, on disk with all it says first or not at all; see `opening_tree`.

    `settings` is how it is spoken to, as of `Message`.
    """
    tree = opening_tree(persona, now=time.time(), system=system, greets=greets)
    first, *greetings = tree.messages
    return store.load(store.write_tree(replace(tree, messages=(replace(first, settings=settings), *greetings))))


def opening_tree(
    persona: FrozenPersona, *, now: float, system: str | None = None, greets: bool = True, greeting: int = 0
) -> ConversationTree:
    """A new conversation that `persona` begins: who it is, with its examples, and its greetings, which are siblings.

    Examples are no messages of the tree: nobody has said them, and a conversation would be called after the first.

    Args:
        persona: frozen.
        now: Unix seconds.
        system: in the place of its system prompt.
        greets: whether its greetings are put there.
        greeting: which of them is shown, counted from 0.

    Raises:
        ValueError: there is no such greeting.
    """
    if greets and persona.greetings and not 0 <= greeting < len(persona.greetings):
        raise ValueError(f"there is no greeting {greeting + 1}; {persona.name} has {len(persona.greetings)}")
    first = takes_over(persona, parent_id=None, now=now)
    if system is not None:
        # Even an empty one says who speaks, which lore and records ask for.
        first = replace(first, text=system)
    texts = persona.greetings if greets else ()
    greetings = [_message(first.id, "assistant", text, now, None) for text in texts]
    tip_id = greetings[greeting].id if greetings else first.id
    return ConversationTree(None, now, now, tip_id, (first, *greetings))


def takes_over(persona: FrozenPersona, *, parent_id: str | None, now: float) -> Message:
    """The system message with which `persona` speaks from here on: its text, and all that was frozen of it.

    An empty text takes the system prompt of whoever spoke before away.
    """
    return _message(parent_id, "system", persona.system_text, now, persona.as_json())


def persona_of(messages: Sequence[Message]) -> FrozenPersona | None:
    """Who speaks at the end of a branch; `None` where no persona does, a group, or a plain system prompt after it.

    Raises:
        PersonaError: what was kept of it is damaged.
    """
    last = next((one for one in reversed(messages) if one.role == "system"), None)
    if last is None or last.persona is None or GROUP in last.persona:
        return None
    return FrozenPersona.from_json(last.persona)


def greeting_place(messages: Sequence[Message]) -> int | None:
    """Which of the persona's greetings stands on the branch, 0 the first; `None` if none of them does."""
    persona = persona_of(messages)
    said = next((one for one in messages if one.role == "assistant"), None)
    if persona is None or said is None or said.text not in persona.greetings:
        return None
    return persona.greetings.index(said.text)


def _message(parent_id: str | None, role: Role, text: str, now: float, persona: dict[str, Any] | None) -> Message:
    return Message(uuid.uuid4().hex, parent_id, role, text, now, persona=persona)
