"""Everything a person can do, in one registry: keys, slash commands and palette entries are doors to the same action.

The help screen is generated from it, and the guide's answers are checked against it. No terminal library here.
"""

from __future__ import annotations

from exlchat.app.commands.action import Action, Place, Situation
from exlchat.app.commands.actions_chat import CHAT_ACTIONS
from exlchat.app.commands.actions_places import PLACE_ACTIONS
from exlchat.app.commands.actions_program import PROGRAM_ACTIONS
from exlchat.app.commands.actions_speech import SPEECH_ACTIONS

__all__ = ["ACTIONS", "BY_ID", "BY_SLASH", "Action", "Place", "Situation", "completions"]

ACTIONS: tuple[Action, ...] = (*CHAT_ACTIONS, *PROGRAM_ACTIONS, *SPEECH_ACTIONS, *PLACE_ACTIONS)
"""In the order to show them."""

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}
BY_SLASH: dict[str, Action] = {action.slash: action for action in ACTIONS if action.slash}


def completions(text: str, now: Situation | None = None) -> list[Action]:
    """Actions whose slash command is meant by `text`, for as long as only a command has been typed.

    First those that begin with it, then those that have its letters in this order; of the latter only where there are
    two letters and more.

    Args:
        text: as typed.
        now: leaves out what cannot be done now; `None` leaves out nothing.
    """
    if not text.startswith("/") or text.startswith("//") or any(mark.isspace() for mark in text):
        return []
    typed = text[1:].lower()
    possible = [action for _, action in sorted(BY_SLASH.items()) if now is None or action.available(now)]
    begun = [action for action in possible if action.usage[1:].startswith(typed)]
    meant = [action for action in possible if len(typed) > 1 and _has_letters((action.slash or "")[1:], typed)]
    return [*begun, *(action for action in meant if action not in begun)]


def _has_letters(word: str, letters: str) -> bool:
    """Whether a word has these letters in this order."""
    rest = iter(word)
    return all(letter in rest for letter in letters)
