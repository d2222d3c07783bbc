"""Generated ids -> text that may be shown: no half stop string, no banned one, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exlchat.engine.text.incremental_decoder import ByteFallback, DecoderMark, IncrementalDecoder, whole_characters
from exlchat.llm.thought_splitter import overlap

__all__ = ["TextStream", "whole_characters"]


@dataclass(frozen=True, slots=True)
class _Token:
    """A token that may yet be taken back, and places in the text of the answer: where its own begins, at the earliest,
    and how far the text goes with it if no other follows.
    """

    before: DecoderMark
    start: int
    reach: int


class TextStream:
    """Text of one answer, token by token.

    A banned string is found whatever the case of its letters. While the text may become one, everything from the first
    token of it on is held, so that these tokens can be taken back.

    Args:
        decode: ids -> text, as a whole.
        stop: strings that end the answer and are never shown; the first to be complete counts.
        before: ids of the text that it goes on from, which was shown but for a half character at its end.
        banned: strings that never come.
        fallback: of a decoder that falls back to bytes.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        *,
        before: Sequence[int] = (),
        banned: Sequence[str] = (),
        fallback: ByteFallback | None = None,
    ) -> None:
        self._decoder = IncrementalDecoder(decode, before, fallback)
        self._stop = tuple(text for text in stop if text)
        self._banned = tuple(dict.fromkeys(folded(text)[0] for text in banned if text))
        longest = max((len(text) for text in self._banned), default=0)
        # A banned string may have begun in what was shown before.
        self._shown = whole_characters(decode(list(before)))[-longest:] if longest and before else ""
        self._gone = 0
        """Characters of the answer that were let out."""
        self._held = ""
        """Those behind them, as far as they are certain."""
        self._tokens: list[_Token] = []
        self.stopped = False
        """Whether a stop string is complete."""
        self.back = 0
        """So many tokens, the last one among them, led to a banned string: they are taken back."""

    def push(self, token_id: int) -> str:
        """Text that may be shown now. Then `stopped` and `back` say whether the token was the last, or one too many."""
        before, start = self._decoder.mark, self._gone + len(self._held)
        self._held += self._decoder.push(token_id)
        text = self._held + self._open_text()
        self._tokens.append(_Token(before, start, self._gone + len(text)))
        self.back = 0
        stop = _first(text, self._stop)
        ban = self._first_banned(text)
        if ban is not None and (stop is None or ban[1] <= stop[1]):
            self._take_back(ban[0])
            return ""
        if stop is not None:
            self.stopped = True
            self._tokens.clear()
            return text[: stop[0]]
        return self._release(min(len(self._held), len(text) - self._kept(text)))

    def finish(self) -> str:
        """What is still held when the answer ends for another reason than a stop string."""
        if self.stopped:
            return ""
        held = self._held + self._decoder.rest()
        ban = self._first_banned(held)
        return held if ban is None else held[: max(ban[0], 0)]

    @property
    def held_tokens(self) -> int:
        """How many of the last tokens may yet be taken back."""
        return len(self._tokens) if self._banned else 0

    def _open_text(self) -> str:
        """Whole characters that are the text unless the next token changes them; only strings are looked for there."""
        if not self._decoder.mark.in_run or not (self._stop or self._banned):
            return ""
        return self._decoder.rest().rstrip("\ufffd")

    def _first_banned(self, held: str) -> tuple[int, int] | None:
        """Where in `held` the banned string begins and ends that is complete first; it may begin before."""
        if not self._banned:
            return None
        text, origin = folded(self._shown + held)
        shown = len(self._shown)
        found = _first(text, self._banned, after=len(folded(self._shown)[0]))
        return None if found is None else (origin[found[0]] - shown, origin[found[1] - 1] + 1 - shown)

    def _take_back(self, start: int) -> None:
        """Drops the token in which a place of the held text stands, and those behind it."""
        index = self._token_at(start)
        first = self._tokens[index]
        self.back = len(self._tokens) - index
        self._decoder.back(first.before)
        self._held = self._held[: first.start - self._gone]
        del self._tokens[index:]

    def _token_at(self, place: int) -> int:
        beyond = (number for number, token in enumerate(self._tokens) if token.reach > self._gone + max(place, 0))
        return next(beyond, len(self._tokens) - 1)

    def _kept(self, held: str) -> int:
        """How many characters at the end of `held` may not be shown yet."""
        stop = max((overlap(held, stop) for stop in self._stop), default=0)
        if not self._banned:
            return stop
        text, origin = folded(self._shown + held)
        live = max(overlap(text, ban) for ban in self._banned)
        if not live:
            return stop
        first = self._tokens[self._token_at(origin[len(text) - live] - len(self._shown))]
        return max(stop, self._gone + len(held) - first.start)

    def _release(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        self._gone += count
        while self._tokens and self._tokens[0].reach <= self._gone:
            del self._tokens[0]
        if count:
            self._shown = ""  # no banned string has begun
        return shown


def folded(text: str) -> tuple[str, list[int]]:
    """`text` in lower case, and for each of its characters the place of the one that it was made of."""
    lower = [char.lower() for char in text]
    return "".join(lower), [place for place, chars in enumerate(lower) for _ in chars]


def _first(text: str, wanted: Sequence[str], *, after: int = 0) -> tuple[int, int] | None:
    """Start and end of the string that is complete first, of those that end behind `after`."""
    found = []
    for one in wanted:
        start = text.find(one, max(after - len(one) + 1, 0))
        if start >= 0:
            found.append((start + len(one), start))
    return None if not found else (min(found)[1], min(found)[0])
