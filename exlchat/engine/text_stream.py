"""ids -> text that may be shown: whole characters only, and never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
# The longest UTF-8 character has four bytes, so a fifth token without progress is no character in the making.
_MAX_HELD_TOKENS = 5


class TextStream:
    """Text of one answer, token by token.

    Args:
        decode: ids -> text, as a whole.
        stop: strings that end the answer and are never shown; the first to be complete counts.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(text for text in stop if text)
        self._ids: list[int] = []
        # Decoding starts at `_window`, whose text up to `_read` has been taken: enough context for tokenizers
        # that treat the beginning of a text in their own way.
        self._window = self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that may be shown now. `stopped` turns true when a stop string is complete."""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._window : self._read])
        text = self._decode(self._ids[self._window :])
        if text == known:
            # A special token, say; it must not count among those that wait for the rest of a character.
            self._read = len(self._ids)
            return ""
        held_tokens = len(self._ids) - self._read
        if len(text) < len(known) or (text.endswith(_REPLACEMENT) and held_tokens < _MAX_HELD_TOKENS):
            return ""
        self._window, self._read = self._read, len(self._ids)
        return self._release(text[len(known) :])

    def finish(self) -> str:
        """What is still held when the answer ends for another reason than a stop string."""
        if self.stopped:
            return ""
        known = self._decode(self._ids[self._window : self._read])
        rest = self._held + self._decode(self._ids[self._window :])[len(known) :]
        self._held = ""
        return rest

    def _release(self, text: str) -> str:
        self._held += text
        found = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown = self._held[: min(found)[1]]
            self._held = ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
