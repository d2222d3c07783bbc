"""ids -> text, token by token: whole characters, and the same text as decoding all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_REPLACEMENT = "\ufffd"
# The longest UTF-8 character: more broken bytes than this will not become one.
_MAX_HELD_BYTES = 4
# Some decoders show a whole run of bytes as broken until its last character is complete; a window holds two characters.
_MAX_HELD = 2 * _MAX_HELD_BYTES
# Tokens that are decoded together, at most. A model that babbles broken bytes must not make every step decode all of
# them again.
_MAX_WINDOW = 64


@dataclass(frozen=True, slots=True)
class ByteFallback:
    """What a decoder takes together that falls back to bytes: characters that no token has are tokens of their bytes.

    A run of such tokens is text if all of it is UTF-8, else a U+FFFD for each of them. So nothing of it is certain
    before it ends.

    Args:
        byte_ids: the tokens that are bytes.
        is_silent: whether an id adds nothing to a text, not even the end of a run.
    """

    byte_ids: frozenset[int]
    is_silent: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class DecoderMark:
    """Where a decoder stands.

    Decoding starts at token `window`: two steps back, because tokenizers treat the beginning of a text in their own
    way.
    Tokens before `read` are done with; of the window's text `shown` characters have been taken. `in_run`: the last
    token is of a run of bytes, which may go on.
    """

    tokens: int
    window: int
    read: int
    shown: int
    in_run: bool = False


class IncrementalDecoder:
    """Text of one sequence.

    Args:
        decode: ids -> text, as a whole.
        before: ids that it goes on from, whose text has been taken but for a half character at its end.
        fallback: of a decoder that falls back to bytes.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        before: Sequence[int] = (),
        fallback: ByteFallback | None = None,
    ) -> None:
        self._decode = decode
        self._fallback = fallback
        self._ids = list(before[-_MAX_WINDOW:])
        count = len(self._ids)
        in_run = False
        for token_id in self._ids:
            in_run = self._goes_on(in_run, token_id)
        self._at = DecoderMark(count, 0, count, len(whole_characters(decode(self._ids))), in_run)

    @property
    def mark(self) -> DecoderMark:
        return self._at

    def back(self, mark: DecoderMark) -> None:
        del self._ids[mark.tokens :]
        self._at = mark

    def push(self, token_id: int) -> str:
        """The whole characters that a token makes certain."""
        self._ids.append(token_id)
        count = len(self._ids)
        at = replace(self._at, tokens=count, in_run=self._goes_on(self._at.in_run, token_id))
        if at.in_run:
            self._at = at
            return ""
        text = self._decode(self._ids[at.window :])
        held = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD)
        if not held:
            self._at = self._slid(at, text)
            return text[at.shown :]
        whole = max(at.shown, len(text) - held)
        self._at = replace(at, shown=whole) if count - at.read <= _MAX_WINDOW else self._cut(at, text, whole)
        return text[at.shown : whole]

    def rest(self) -> str:
        """What has not been taken, as it is if no token follows: half characters too."""
        return self._decode(self._ids[self._at.window :])[self._at.shown :]

    def _goes_on(self, in_run: bool, token_id: int) -> bool:
        """Whether a run of bytes is open behind a token."""
        if self._fallback is None:
            return False
        return token_id in self._fallback.byte_ids or (in_run and self._fallback.is_silent(token_id))

    def _slid(self, at: DecoderMark, text: str) -> DecoderMark:
        """The window moved on, now that all of its `text` has been taken.

        A window of special tokens alone has no text, and the token behind them would be decoded as the first of all,
        without its space; so the window stays as long as it is short.
        """
        count = len(self._ids)
        ahead = self._decode(self._ids[at.read :])
        if ahead or count - at.window > _MAX_WINDOW:
            return DecoderMark(count, at.read, count, len(ahead))
        return DecoderMark(count, at.window, count, len(text))

    def _cut(self, at: DecoderMark, text: str, whole: int) -> DecoderMark:
        """The window moved on within broken bytes, of whose `text` the first `whole` characters have been taken.

        Where both sides of a place are the same text alone as together, no character stands across it, whatever comes.
        """
        for place in range(at.tokens - 1, at.window, -1):
            left = self._decode(self._ids[at.window : place])
            if len(left) <= whole and left + self._decode(self._ids[place:]) == text:
                return replace(at, window=place, read=place, shown=whole - len(left))
        return replace(at, shown=whole)


def whole_characters(text: str) -> str:
    """A decoded text without the character in the making at its end."""
    broken = len(text) - len(text.rstrip(_REPLACEMENT))
    return text[: len(text) - min(broken, _MAX_HELD_BYTES)]
