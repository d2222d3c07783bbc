"""Messages as commands count them from the end, each in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import char_of, label_of
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exlchat.chat.model import Message

WHO: Final = {"user": "you", "assistant": "answer", "system": "system"}
_CELLS: Final = 60


def numbered_back(branch: Sequence[Message]) -> list[tuple[int, Message]]:
    """The messages with the numbers by which commands count them from the end; system prompts are not counted: 0."""
    numbered = []
    number = sum(message.role != "system" for message in branch)
    for message in branch:
        if message.role == "system":
            numbered.append((0, message))
        else:
            numbered.append((number, message))
            number -= 1
    return numbered


def about(message: Message, places: Mapping[str, tuple[int, int]]) -> str:
    """A message in a line without its number."""
    said = one_line(answer_parts(message).answer, _CELLS) or "(nothing)"
    place = places.get(message.id)
    more = [f"alternative {place[0]} of {place[1]}"] if place is not None else []
    more += ["pinned"] if message.pinned else []
    more += ["left out"] if message.left_out else []
    state = f" ({', '.join(more)})" if more else ""
    return f"{who_says(message)}: {said}{state}"


def who_says(message: Message) -> str:
    """Whose message it is: of a group the name of who gave the answer."""
    name = char_of(message)
    return (label_of(name) if name is not None else "") or WHO[message.role]
