"""Lore in a turn: told with the message that is to be answered, kept with it, and seen by the model from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from exlchat.chat.model import Message
from exlchat.chat.personas.telling import lore_note, lore_to_tell
from exlchat.chat.personas.told import noted_lore


class KeepsTold(Protocol):
    """What of a `ConversationStore` is needed."""

    def keep_told(self, message_id: str, note: Mapping[str, Any]) -> None:
        """See `ConversationStore.keep_told`."""


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
            note = lore_note(lore)
            store.keep_told(told[place].id, note)
            told[place] = replace(told[place], persona=note)
    return tuple(told)
