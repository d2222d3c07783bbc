"""What the text of the composer means: a prompt, a command, or one that cannot be carried out."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.app.commands.actions import BY_NAME, BY_SLASH
from exlchat.app.composer.other_programs import BARE, HERE
from exlchat.app.generation_settings import NAMES

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
    """A command that cannot be carried out, and the line to show."""

    line: str


def parse_input(text: str) -> Prompt | Command | BadCommand:
    """What the text of the composer means. "//" at the start is one literal slash."""
    stripped = text.strip()
    if stripped.startswith("//"):
        return Prompt(stripped[1:])
    if not stripped.startswith("/"):
        line = _of_another_program(stripped)
        return Prompt(stripped) if line is None else BadCommand(line)
    name, _, argument = stripped.partition(" ") if " " in stripped.split("\n", 1)[0] else stripped.partition("\n")
    action = BY_NAME.get(name.lower())
    if action is None:
        return BadCommand(_unknown(name))
    argument = argument.strip()
    if action.argument_required and not argument:
        return BadCommand(f"{name.lower()} needs {action.argument}: {name.lower()} {action.argument}")
    if argument and not action.argument:
        return BadCommand(f"{name.lower()} takes nothing after it; to send the line as text, begin it with //")
    return Command(action, argument)


def _of_another_program(text: str) -> str | None:
    """A line where the text is a command of a program that has them without a slash; `None` where it is none."""
    name, _, rest = text.partition(" ")
    if name.startswith(".") and f"/{name[1:].lower()}" in BY_NAME:
        return f"Commands begin with a slash here: /{text[1:][:40]}; to send it as text, begin it otherwise"
    same = None if rest else BARE.get(name.lower())
    return None if same is None else f"To do that here: {same}; to send {name} as text, add a full stop"


def _unknown(name: str) -> str:
    if (here := HERE.get(name.lower())) is not None:
        return f"There is no command {name}; here: {here}"
    if (setting := name[1:].lower().replace("-", "_")) in NAMES:
        return f"There is no command {name}; here: /set {setting} VALUE"
    shown = name if len(name) <= 24 else f"{name[:24]}…"
    nearest = difflib.get_close_matches(name.lower(), BY_SLASH, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return f"There is no command {shown}; {hint}/help lists all; to send it as text, begin it with //"
