"""Who said each message of a branch, and how it is settled who speaks next in a group. Plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from exlchat.chat.model import Message
from exlchat.untrusted.text import one_line

SpeaksNext = Literal["named", "turn", "chosen"]
SPEAKS_NEXT: tuple[SpeaksNext, ...] = get_args(SpeaksNext)
"""Whoever the last message names, else by turn; by turn alone; whoever the user chooses each time."""
SPEAKS = "speaks"
"""Its key in how a conversation is spoken to."""
GROUP = "group"
"""The key under which a system message holds the members of a group."""
_LONGEST = 40


def label_of(name: str) -> str:
    """A name as it stands over messages and before what others say: one line, cleaned; may be empty."""
    return one_line(name, _LONGEST)


def said_by(branch: Sequence[Message]) -> list[str | None]:
    """The name of who says each message: its own, else that of the persona that speaks there; `None` where none does.

    A message has a name of its own in a group, or from the file that it was imported from.
    """
    spoken: Mapping[str, Any] = {}
    names: list[str | None] = []
    for message in branch:
        if message.role == "system":
            spoken = message.persona or {}
            names.append(None)
            continue
        key = "user" if message.role == "user" else "char"
        told = (one.get(key) for one in (message.persona or {}, spoken))
        names.append(next((label for one in told if isinstance(one, str) and (label := label_of(one))), None))
    return names


def speaks_as(char: str) -> dict[str, Any]:
    """What an answer keeps of who of a group gave it, as its `persona`."""
    return {"char": label_of(char)}


def char_of(message: Message) -> str | None:
    """Who of a group gave an answer; `None` for any other message."""
    own = message.persona if message.role == "assistant" else None
    name = own.get("char") if own is not None else None
    return name if isinstance(name, str) else None


def is_group(message: Message) -> bool:
    """Whether several characters speak from this message on."""
    return message.role == "system" and message.persona is not None and GROUP in message.persona


def speaks_next(settings: Mapping[str, Any] | None) -> SpeaksNext | None:
    """How it is settled who speaks next, by how a conversation is spoken to; `None` where that does not say it."""
    said = None if settings is None else settings.get(SPEAKS)
    return next((one for one in SPEAKS_NEXT if one == said), None)
