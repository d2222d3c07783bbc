"""ids -> text that may be shown: whole characters only, and never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
# The longest UTF-8 character has four bytes, so at most three broken ones at the end can be a character in the making.
_MAX_HELD_BYTES = 3
# A model that babbles broken bytes must not make every step decode all of them again.
_MAX_WINDOW = 64


class TextStream:
    """Text of one answer, token by token.

    Args:
        decode: ids -> text, as a whole.
        stop: strings that end the answer and are never shown; the first to be complete counts.
        before: ids of the text that it goes on from, which was shown but for a half character at its end.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = (), *, before: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._stop = tuple(text for text in stop if text)
        self._ids = list(before[-_MAX_WINDOW:])
        # Decoding starts at token `_window`: two steps back, because tokenizers treat the beginning of a text in their
        # own way. Tokens before `_read` are done with; of the window's text `_shown` characters have been taken.
        self._window, self._read = 0, len(self._ids)
        self._shown = len(whole_characters(decode(self._ids)))
        self._broken_text, self._broken_tokens = "", 0
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that may be shown now. `stopped` turns true when a stop string is complete."""
        self._ids.append(token_id)
        text = self._decode(self._ids[self._window :])
        broken = len(text) - len(text.rstrip(_REPLACEMENT))
        if not broken or len(self._ids) - self._read > _MAX_WINDOW:
            new = text[self._shown :]
            self._slide(text)
            self._broken_text, self._broken_tokens = "", 0
            return self._release(new)
        if text != self._broken_text:
            # Special tokens have no text and bring no character nearer.
            self._broken_text, self._broken_tokens = text, self._broken_tokens + 1
        if self._broken_tokens <= _MAX_HELD_BYTES:
            # Some tokenizers show a whole run of bytes as broken until its last character is complete.
            return ""
        whole = max(self._shown, len(text) - min(broken, _MAX_HELD_BYTES))
        new, self._shown = text[self._shown : whole], whole
        return self._release(new)

    def finish(self) -> str:
        """What is still held when the answer ends for another reason than a stop string."""
        if self.stopped:
            return ""
        rest = self._held + self._decode(self._ids[self._window :])[self._shown :]
        self._held = ""
        return rest

    def _slide(self, text: str) -> None:
        """Moves the window on, now that all of its `text` has been taken.

        A window of special tokens alone has no text, and the token behind them would be decoded as the first of all,
        without its space; so the window stays as long as it is short.
        """
        ahead = self._decode(self._ids[self._read :])
        if ahead or len(self._ids) - self._window > _MAX_WINDOW:
            self._window, self._shown = self._read, len(ahead)
        else:
            self._shown = len(text)
        self._read = len(self._ids)

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


def whole_characters(text: str) -> str:
    """A decoded text without the character in the making at its end."""
    broken = len(text) - len(text.rstrip(_REPLACEMENT))
    return text[: len(text) - min(broken, _MAX_HELD_BYTES)]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
