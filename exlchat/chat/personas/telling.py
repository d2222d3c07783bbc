"""Lore on a branch of a conversation: what is told with its last message, and what was told with the others.

What is told with a message is kept with it (`lore_note`), so that a prompt made again is the same, whatever becomes of
the persona's file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from exlchat.chat.personas.lore_activation import triggered
from exlchat.chat.personas.lorebook import Lore
from exlchat.chat.personas.opening import greeting_place, persona_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.told import Spoken, noted_lore
from exlchat.untrusted.child import ChildError


def lore_to_tell(
    branch: Sequence[Spoken], *, count_tokens: Callable[[str], int], seen: Collection[str] | None = None
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
