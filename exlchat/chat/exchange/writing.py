"""Conversations into the text of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from exlchat.chat.exchange import jsonl, markdown, openai, silly_tavern_out
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.model import ConversationTree
from exlchat.untrusted.text import storable

Format = Literal["jsonl", "md", "html", "openai", "sillytavern"]


def written(trees: Sequence[ConversationTree], form: Format) -> str:
    """The file: `jsonl` loses nothing, the others have the active branch. Lone surrogates, which no file holds, go.

    Raises:
        ExchangeError: a file of this form holds one conversation, and these are several.
    """
    match form:
        case "jsonl":
            return "".join(jsonl.lines(trees))
        case "md":
            return storable(markdown.page(trees))
        case "openai":
            return storable(openai.dumps(trees))
        case "sillytavern":
            if len(trees) != 1:
                raise ExchangeError(f"a file of SillyTavern holds one chat, and these are {len(trees)}; name one")
            return storable("".join(silly_tavern_out.lines(trees[0])))
        case "html":
            # Pygments and the Markdown parser are not needed for the others.
            from exlchat.chat.exchange import html_page

            return storable(html_page.page(trees))
