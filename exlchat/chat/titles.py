"""Titles of conversations: who gives them, and how a text becomes one."""

from __future__ import annotations

from typing import Literal

from exlchat.untrusted.text import one_line, storable

TITLE_LENGTH = 60
UNTITLED = "New conversation"

TitleBy = Literal["user", "model", "first line"]
"""Who gave a title. A user's is never replaced, a model's only by a user's."""


def clean_title(text: str) -> str | None:
    """The first line that is not blank, shortened; `None` when there is none."""
    for line in storable(text).splitlines():
        title = one_line(line, TITLE_LENGTH)
        if title:
            return title
    return None
