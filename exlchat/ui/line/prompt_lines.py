"""The exact prompt in lines: what of it each message takes, what the cache holds, and its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.ui.line.formatter import TokenPiece
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.chat.prompt.inspection import Inspected
    from exlchat.chat.prompt.layout import MessageSpan

_MOST_TOKENS: Final = 1_000
"""How many are written, the last ones: some fifty lines."""
_MOST_MESSAGES: Final = 30


def told(prompt: Inspected, conversation_id: str) -> list[str]:
    """Tokens, what of them the cache holds, and the tokens of each message; how to see all where not all are written.

    Args:
        prompt: laid open.
        conversation_id: whose prompt it is.
    """
    layout, cached = prompt.layout, prompt.cached
    many = len(layout.ids)
    lines = [
        f"Prompt by the format {one_line(prompt.form, 60)}: {many:,} tokens, {cached:,} of them in the cache, "
        f"{many - cached:,} to be read"
    ]
    left_out = len(layout.messages) - _MOST_MESSAGES
    if left_out > 0:
        lines.append(f"{left_out} earlier messages")
    for number, one in list(enumerate(layout.messages, 1))[-_MOST_MESSAGES:]:
        lines.append(f"{number:>3}  {one.role}: {_span(one, cached)}")
    if many > _MOST_TOKENS:
        shown = f"exlchat template show --conversation {conversation_id[:8]}"
        lines.append(f"The last {_MOST_TOKENS:,} tokens; all are printed by {shown}")
    return lines


def pieces(prompt: Inspected) -> list[TokenPiece]:
    layout = prompt.layout
    owner = layout.owners()
    first = max(len(layout.ids) - _MOST_TOKENS, 0)
    return [
        TokenPiece(layout.pieces[place], owner.get(place), place < prompt.cached)
        for place in range(first, len(layout.ids))
    ]


def _span(one: MessageSpan, cached: int) -> str:
    if one.first is None or one.last is None:
        return "changed by the format, or left out"
    held = "in the cache" if one.last <= cached else "to be read" if one.first >= cached else "in part in the cache"
    if one.first == one.last:
        return "0 tokens"
    return f"{one.last - one.first:,} tokens, {one.first:,} to {one.last - 1:,}, {held}"
