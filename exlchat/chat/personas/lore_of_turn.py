"""Lore in a turn: told with the message that is to be answered, kept with it, and seen by the model from then on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from exlchat.chat.model import Message
from exlchat.chat.personas.lore_activation import triggered
from exlchat.chat.personas.lorebook import Lore, noted_lore
from exlchat.chat.personas.opening import greeting_place, persona_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.untrusted.child import ChildError


class KeepsTold(Protocol):
    def keep_told(self, message_id: str, note: Mapping[str, Any]) -> None: ...


def with_lore(
    store: KeepsTold, branch: Sequence[Message], *, count_tokens: Callable[[str], int]
) -> tuple[Message, ...]:
    """The branch, with the lore that its last message of the user brings up kept with that message.

    The same message has the same lore for ever, so that what the cache holds of a prompt stays its beginning;
    `prompt_ids.prompt_messages` puts it before the message's text.

    Args:
        store: of the branch.
        branch: oldest message first; the last one of the user is to be answered.
        count_tokens: tokens of a text.

    Raises:
        PersonaError: what was kept of the persona is damaged.
        StoreError: the lore cannot be kept.
    """
    place = max((index for index, one in enumerate(branch) if one.role == "user"), default=None)
    told = list(branch)
    if place is not None and not noted_lore(told[place]) and told[place].id:
        lore = lore_to_tell(told[: place + 1], count_tokens=count_tokens)
        if lore:
            note = {**(told[place].persona or {}), **lore_note(lore)}
            store.keep_told(told[place].id, note)
            told[place] = replace(told[place], persona=note)
    return tuple(told)


def lore_to_tell(
    branch: Sequence[Message], *, count_tokens: Callable[[str], int], seen: Collection[str] | None = None
) -> tuple[Lore, ...]:
    """What is to be told with the last message of `branch`, before it is answered; nothing where no persona speaks.

    Args:
        branch: oldest message first; the last one has nothing told with it yet.
        count_tokens: tokens of a text.
        seen: ids of the messages that the model sees; `None`: all. Lore of the others may be told again.

    Raises:
        PersonaError: what was kept of the persona is damaged, or the patterns of its lorebook cannot be looked for.
    """
    persona = persona_of(branch)
    if persona is None or persona.lorebook is None:
        return ()
    begins = max(place for place, one in enumerate(branch) if one.role == "system")
    told_before = set(persona.told)
    already = set(persona.told)
    for message in branch[begins + 1 :]:
        places = {one.index for one in noted_lore(message)}
        told_before |= places
        already |= places if seen is None or message.id in seen else set()
    said = [one for one in branch if one.role != "system"]
    try:
        return triggered(
            persona.lorebook,
            [one.text for one in said],
            already,
            names=[persona.user if one.role == "user" else persona.char for one in said],
            count_tokens=count_tokens,
            told_before=told_before,
            answers=sum(one.role == "assistant" for one in said),
            greeting=greeting_place(branch),
            seed=persona.seed,
        )
    except ChildError as error:
        raise PersonaError(f"{persona.source}: looking for the patterns of its lorebook {error}") from None


def lore_note(lore: Sequence[Lore]) -> dict[str, Any]:
    """What is kept with the message with which lore was told, as its `persona`: places and texts."""
    return {"lore": [{"entry": one.index, "text": one.text} for one in lore]}
