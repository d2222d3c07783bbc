"""Titles of conversations: the first line of what was asked, or what a model makes of the first exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from exlchat.chat.conversation import Message
from exlchat.chat.plain_text import one_line, storable

TITLE_LENGTH = 60
UNTITLED = "New conversation"

TitleBy = Literal["user", "model", "first line"]
"""Who gave a title. A user's is never replaced, a model's only by a user's."""

_EXCERPT = 1200
_ASKED = (
    "Give this conversation a title of at most six words, in its own language. "
    "Answer with the title alone, without quotation marks.\n\n"
)
_DECORATION = "\"'`*#“”„«»‘’ "
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def clean_title(text: str) -> str | None:
    """The first line that is not blank, shortened; `None` when there is none."""
    for line in storable(text).splitlines():
        title = one_line(line, TITLE_LENGTH)
        if title:
            return title
    return None


def title_prompt(branch: Sequence[Message]) -> str:
    """What to ask a model, as one message of a user, to have a conversation titled by its first exchange."""
    said = [message for message in branch if message.role != "system" and message.text.strip()][:2]
    told = "\n\n".join(f"{message.role.capitalize()}: {message.text.strip()[:_EXCERPT]}" for message in said)
    return _ASKED + told


def title_from_answer(answer: str) -> str | None:
    """The title in a model's answer to `title_prompt`; `None` when there is none in it."""
    for line in _THOUGHT.sub("", answer).splitlines():
        bare = re.sub(r"^\W*title\W*:", "", line, flags=re.IGNORECASE).strip(_DECORATION).rstrip(".")
        if title := clean_title(bare):
            return title
    return None
