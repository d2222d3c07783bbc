"""A prompt laid open: its text, its ids, the text of each token, and which tokens each message takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from exlchat.chat.prompt.ids import PromptMessage, message_places, prompt_ids, prompt_text
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.port import TextModel

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
            borders a token may hold a mark's end or beginning too. An empty message has a place between two of them.
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

    def owners(self) -> dict[int, str]:
        """By the place of a token, the role of the message that it is of; marks of the format are of none."""
        return {
            token: one.role
            for one in self.messages
            if one.first is not None and one.last is not None
            for token in range(one.first, one.last)
        }


def lay_out(
    engine: TextModel,
    messages: Sequence[PromptMessage],
    form: PromptFormat,
    *,
    add_generation_prompt: bool = True,
    begun: Sequence[int] = (),
) -> PromptLayout:
    """The prompt of `messages`, exactly as a model would get it.

    Args:
        engine: whose tokens.
        messages: what is said.
        form: the format.
        add_generation_prompt: whether it ends where the model is to go on.
        begun: ids behind it, of a cut answer that goes on: one more message of the layout.

    Raises:
        PromptError: the format cannot take these messages.
    """
    text = prompt_text(engine, messages, form, add_generation_prompt=add_generation_prompt)
    ids = [*prompt_ids(engine, messages, form, add_generation_prompt=add_generation_prompt), *begun]
    pieces = token_texts(engine, ids)
    places = message_places(engine, messages, form, add_generation_prompt=add_generation_prompt)
    tokens = _Tokens(text, pieces[: len(pieces) - len(begun)])
    spans = [
        MessageSpan(message.role) if place is None else MessageSpan(message.role, *place, *tokens.holding(*place))
        for message, place in zip(messages, places, strict=True)
    ]
    if begun:
        first = len(ids) - len(begun)
        said = "".join(pieces[first:])
        spans.append(MessageSpan("assistant", len(text), len(text) + len(said), first, len(ids)))
        text += said
    return PromptLayout(text, tuple(ids), tuple(pieces), tuple(spans))


class _Tokens:
    """Where characters of a prompt's text stand among its tokens.

    An answer stands there as it was generated, whatever white space the template puts around it, and some tokenizers
    drop spaces: where the two texts differ in white space alone, only the other characters are counted.
    """

    def __init__(self, text: str, pieces: Sequence[str]) -> None:
        told = "".join(pieces)
        self._exact = told == text
        self._known = self._exact or _squeezed(told) == _squeezed(text)
        self._text = text
        self._ends = list(accumulate(len(piece) if self._exact else len(_squeezed(piece)) for piece in pieces))

    def holding(self, start: int, end: int) -> tuple[int, int] | tuple[None, None]:
        """The first token of these characters, and the one behind the last."""
        if start == end:
            return self._between(start)
        if not self._known:
            return None, None
        if not self._exact:
            start, end = len(_squeezed(self._text[:start])), len(_squeezed(self._text[:end]))
        return bisect_right(self._ends, start), bisect_left(self._ends, end) + 1

    def _between(self, place: int) -> tuple[int, int] | tuple[None, None]:
        """Twice the token that begins at this character; none where a token goes across it, or cannot be found."""
        following = bisect_right(self._ends, place)
        before = self._ends[following - 1] if following else 0
        return (following, following) if self._exact and before == place else (None, None)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def single_texts(engine: TextModel, ids: Iterable[int]) -> dict[int, str]:
    """The text of each token alone, in the middle of a line."""
    anchor = engine.encode(_ANCHOR)
    alone = engine.decode(anchor, special=True)
    return {token: engine.decode([*anchor, token], special=True).removeprefix(alone) for token in ids}


def token_texts(engine: TextModel, ids: Sequence[int]) -> list[str]:
    """The text that each id adds, in the middle of a line: some tokenizers drop a space at the beginning.

    Where several make one character, the last of them has it.
    """
    anchor = engine.encode(_ANCHOR)
    alone = engine.decode(anchor, special=True)
    pieces: list[str] = []
    held: list[int] = []
    for number, token in enumerate(ids):
        held.append(token)
        text = engine.decode([*anchor, *held], special=True).removeprefix(alone)
        if text.endswith(_REPLACEMENT) and len(held) < _MOST_HELD and number + 1 < len(ids):
            pieces.append("")
            continue
        pieces.append(text)
        held = []
    return pieces
