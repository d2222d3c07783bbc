"""What the text of the composer means: a prompt, a command, or one that cannot be carried out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.app.commands.actions import BY_SLASH

if TYPE_CHECKING:
    from exlchat.app.commands.action import Action


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command that exists; `argument` is stripped and may be empty."""

    action: Action
    argument: str


@dataclass(frozen=True, slots=True)
class BadCommand:
    """A slash command that cannot be carried out, and the line to show; the text stays where it was typed."""

    line: str


def parse_input(text: str) -> Prompt | Command | BadCommand:
    """What the text of the composer means. "//" at the start is one literal slash."""
    stripped = text.strip()
    if stripped.startswith("//"):
        return Prompt(stripped[1:])
    if not stripped.startswith("/"):
        return Prompt(stripped)
    name, _, argument = stripped.partition(" ") if " " in stripped.split("\n", 1)[0] else stripped.partition("\n")
    action = BY_SLASH.get(name.lower())
    if action is None:
        return BadCommand(_unknown(name))
    argument = argument.strip()
    if action.argument_required and not argument:
        return BadCommand(f"{action.slash} needs {action.argument}: {action.usage}")
    if argument and not action.argument:
        return BadCommand(f"{action.slash} takes nothing after it; to send the line as text, begin it with //")
    return Command(action, argument)


def _unknown(name: str) -> str:
    shown = name if len(name) <= 24 else f"{name[:24]}…"
    nearest = difflib.get_close_matches(name.lower(), BY_SLASH, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return f"There is no command {shown}; {hint}/help lists all; to send it as text, begin it with //"
