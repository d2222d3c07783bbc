"""Conversations into the text of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from exlchat.chat.exchange import jsonl, markdown, openai
from exlchat.chat.model import ConversationTree
from exlchat.untrusted.text import storable

Format = Literal["jsonl", "md", "html", "openai"]


def written(trees: Sequence[ConversationTree], form: Format) -> str:
    """The file: `jsonl` loses nothing, the others have the active branch. Lone surrogates, which no file holds, go."""
    match form:
        case "jsonl":
            return "".join(jsonl.lines(trees))
        case "md":
            return storable(markdown.page(trees))
        case "openai":
            return storable(openai.dumps(trees))
        case "html":
            # Pygments and the Markdown parser are not needed for the others.
            from exlchat.chat.exchange import html_page

            return storable(html_page.page(trees))
