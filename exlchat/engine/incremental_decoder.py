"""ids -> text, token by token: whole characters, and the same text as decoding all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_REPLACEMENT = "\ufffd"
# The longest UTF-8 character: more broken bytes than this will not become one.
_MAX_HELD_BYTES = 4
# Tokens that are decoded together, at most. A model that babbles broken bytes must not make every step decode all of
# them again.
_MAX_WINDOW = 64


@dataclass(frozen=True, slots=True)
class DecoderMark:
    """Where a decoder stands.

    Decoding starts at token `window`: two steps back, because tokenizers treat the beginning of a text in their own
    way.
    Tokens before `read` are done with; of the window's text `shown` characters have been taken.
    """

    tokens: int
    window: int
    read: int
    shown: int
    broken_text: str = ""
    broken_tokens: int = 0


class IncrementalDecoder:
    """Text of one sequence.

    Args:
        decode: ids -> text, as a whole.
        before: ids that it goes on from, whose text has been taken but for a half character at its end.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(before[-_MAX_WINDOW:])
        count = len(self._ids)
        self._at = DecoderMark(count, 0, count, len(whole_characters(decode(self._ids))))

    @property
    def mark(self) -> DecoderMark:
        """Where it stands, for `back`."""
        return self._at

    def back(self, mark: DecoderMark) -> None:
        """As it was there: the tokens since then have not come."""
        del self._ids[mark.tokens :]
        self._at = mark

    def push(self, token_id: int) -> str:
        """The whole characters that a token completes."""
        self._ids.append(token_id)
        at = replace(self._at, tokens=len(self._ids))
        text = self._decode(self._ids[at.window :])
        broken = len(text) - len(text.rstrip(_REPLACEMENT))
        if not broken or len(self._ids) - at.read > _MAX_WINDOW:
            self._at = self._slid(at, text)
            return text[at.shown :]
        if text != at.broken_text:
            # Special tokens have no text and bring no character nearer.
            at = replace(at, broken_text=text, broken_tokens=at.broken_tokens + 1)
        if at.broken_tokens <= _MAX_HELD_BYTES:
            # Some tokenizers show a whole run of bytes as broken until its last character is complete.
            self._at = at
            return ""
        whole = max(at.shown, len(text) - min(broken, _MAX_HELD_BYTES))
        self._at = replace(at, shown=whole)
        return text[at.shown : whole]

    def rest(self) -> str:
        """What has not been taken, half characters too."""
        return self._decode(self._ids[self._at.window :])[self._at.shown :]

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


def whole_characters(text: str) -> str:
    """A decoded text without the character in the making at its end."""
    broken = len(text) - len(text.rstrip(_REPLACEMENT))
    return text[: len(text) - min(broken, _MAX_HELD_BYTES)]
