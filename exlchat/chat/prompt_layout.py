"""A prompt laid open: its text, its ids, the text of each token, and which tokens each message takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from exlchat.chat.engine_port import SpellingPort
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.prompt_ids import PromptMessage, message_places, prompt_ids, prompt_text

_ANCHOR = "x"
_REPLACEMENT = "\ufffd"
_MOST_HELD = 32
"""Tokens that may hold parts of one character; more than that are broken text."""


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Where a message's own text stands, without the marks around it.

    Args:
        start, end: characters of the prompt's text; `None` where the template changes the message or leaves it out.
        first, last: the tokens that hold them, `last` not among them; `None` where the tokens do not tell. At its
            borders a token may hold a mark's end or beginning too.
    """

    role: str
    start: int | None = None
    end: int | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """One prompt. `pieces` has the text of each id; where several make one character, the last of them has it."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    messages: tuple[MessageSpan, ...]


def lay_out(
    engine: SpellingPort,
    messages: Sequence[PromptMessage],
    form: PromptFormat,
    *,
    add_generation_prompt: bool = True,
) -> PromptLayout:
    """The prompt of `messages`, exactly as a model would get it.

    Raises:
        PromptError: the format cannot take these messages.
    """
    text = prompt_text(engine, messages, form, add_generation_prompt=add_generation_prompt)
    ids = prompt_ids(engine, messages, form, add_generation_prompt=add_generation_prompt)
    pieces = _pieces(engine, ids)
    ends: list[int] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    told = "".join(pieces) == text
    places = message_places(engine, messages, form, add_generation_prompt=add_generation_prompt)
    spans = []
    for message, place in zip(messages, places, strict=True):
        if place is None:
            spans.append(MessageSpan(message.role))
        elif not told:
            spans.append(MessageSpan(message.role, *place))
        else:
            first, last = bisect_right(ends, place[0]), bisect_left(ends, place[1]) + 1
            spans.append(MessageSpan(message.role, *place, first, last))
    return PromptLayout(text, tuple(ids), tuple(pieces), tuple(spans))


def _pieces(engine: SpellingPort, ids: Sequence[int]) -> list[str]:
    """The text that each id adds, in the middle of a line: some tokenizers drop a space at the beginning."""
    anchor = engine.encode(_ANCHOR)
    alone = engine.spell(anchor)
    pieces: list[str] = []
    held: list[int] = []
    for number, token in enumerate(ids):
        held.append(token)
        text = engine.spell([*anchor, *held]).removeprefix(alone)
        if text.endswith(_REPLACEMENT) and len(held) < _MOST_HELD and number + 1 < len(ids):
            pieces.append("")
            continue
        pieces.append(text)
        held = []
    return pieces
