"""Who speaks at the end of a branch, and what the model is told because of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exlchat.chat.model import Message, settings_of
from exlchat.chat.prompt.note import Note, note_in

if TYPE_CHECKING:
    from exlchat.chat.personas.lore_of_turn import KeepsTold


class TurnError(Exception):
    """A turn that makes no sense at this point of the conversation; one line."""


def speaker_name(branch: Sequence[Message]) -> str | None:
    name = _spoken(branch).get("name")
    return name if isinstance(name, str) else None


def speaker_names(branch: Sequence[Message]) -> dict[str, str]:
    """What templates call those who speak at the end of a branch; nothing where no persona does."""
    spoken = _spoken(branch)
    names = {"user_name": spoken.get("user"), "assistant_name": spoken.get("char")}
    return {key: name for key, name in names.items() if isinstance(name, str) and name.strip()}


def note_told(branch: Sequence[Message], settings: Mapping[str, Any] | None = None) -> Note | None:
    """The author's note at the end of a branch, with the names of those who speak there.

    `settings` is how the conversation is spoken to, where the branch does not say it.
    """
    note = note_in(settings_of(branch) if settings is None else settings)
    return None if note is None else note.resolved(speaker_names(branch))


def speaker_thinks(branch: Sequence[Message]) -> bool | None:
    wanted = _spoken(branch).get("thinking")
    return wanted if isinstance(wanted, bool) else None


def with_lore_told(
    store: KeepsTold, branch: tuple[Message, ...], count_tokens: Callable[[str], int]
) -> tuple[Message, ...]:
    """See `personas.lore_of_turn`, which is only read where a persona with a lorebook speaks.

    Raises:
        TurnError: what was kept of the persona is damaged.
    """
    if _spoken(branch).get("lorebook") is None:
        return branch
    from exlchat.chat.personas.lore_of_turn import with_lore
    from exlchat.chat.personas.persona import PersonaError

    try:
        return with_lore(store, branch, count_tokens=count_tokens)
    except PersonaError as error:
        raise TurnError(str(error)) from error


class KeepsNothing:
    """In the place of a store, for looking at a prompt: what would be told is not noted."""

    def keep_told(self, message_id: str, note: Mapping[str, Any]) -> None:
        """Nothing."""


def _spoken(branch: Sequence[Message]) -> Mapping[str, Any]:
    newest = next((one.persona for one in reversed(branch) if one.role == "system"), None)
    return {} if newest is None else newest
