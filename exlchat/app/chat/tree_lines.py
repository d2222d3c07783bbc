"""All branches of a conversation as lines, for looking through. No terminal library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.chat.plain_text import plain
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.chat.model import Message

_DEEPEST = 12
"""Steps to the right; more would leave no room for the text."""


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A message of the tree: `depth` counts the places above it where branches part, `text` is one line of it.

    `lines` are those that lead to it from where its branch parts, two cells a step.
    """

    message: Message
    depth: int
    text: str
    lines: str


def tree_lines(messages: Sequence[Message], *, cells: int = 60) -> list[TreeLine]:
    """The messages that are not hidden, each branch below the message from which it parts.

    Only where branches part is there a step to the right: a long conversation stays narrow.
    """
    children: dict[str | None, list[Message]] = {}
    for one in messages:
        if not one.deleted:
            children.setdefault(one.parent_id, []).append(one)
    lines: list[TreeLine] = []
    waiting = _below(children.get(None, []), 0, "")
    while waiting:
        one, depth, to_it, past_it = waiting.pop()
        lines.append(TreeLine(one, min(depth, _DEEPEST), plain(one_line(answer_parts(one).answer, cells)).text, to_it))
        waiting += _below(children.get(one.id, []), depth, past_it)
    return lines


def _below(messages: Sequence[Message], depth: int, rails: str) -> list[tuple[Message, int, str, str]]:
    """Messages that follow one, the last of them first: their depth, the lines that lead to them, and those past them.

    Args:
        depth, rails: of the one that they follow.
    """
    if len(messages) <= 1 or depth >= _DEEPEST:
        return [(one, depth + (len(messages) > 1), rails, rails) for one in reversed(messages)]
    found = [(one, depth + 1, f"{rails}├─", f"{rails}│ ") for one in messages[:-1]]
    return [(messages[-1], depth + 1, f"{rails}└─", f"{rails}  "), *reversed(found)]
