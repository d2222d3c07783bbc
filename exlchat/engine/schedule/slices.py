"""How much of a prompt is read between two passes while somebody is answered: what a slice takes decides.

Nothing here waits for a card: a slice is launched, and how long it took is seen from when the next one may be.
"""

from __future__ import annotations

from exlchat.llm.request import Rank

_BEGIN = {Rank.CHAT: 256, Rank.API: 1024}
"""Tokens, until something is known: 12 and 35 ms of an 8B on an H200."""
_SECONDS = {Rank.CHAT: 0.012, Rank.API: 0.035}
"""What a slice may take while somebody of such a rank is answered, or as much as a pass where that takes longer: their
tokens then come half as fast, and not slower."""
_LEAST = 32
"""Fewer tokens take as long as these, on a card and on a processor."""


class Slices:
    """Of one scheduler. Seconds are of a clock that only goes on.

    Args:
        chunk: tokens that are computed at once where nobody is answered.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._sizes: dict[Rank, int] = {}
        self._pass_seconds = 0.0
        self._alone: tuple[int, float] | None = None
        self._token_seconds = 0.0
        self._slice: tuple[Rank, int, float] | None = None
        self._passed: float | None = None

    def read_alone(self, now: float) -> int:
        """The size of a slice while nobody is answered."""
        if self._alone is not None:
            tokens, at = self._alone
            self._token_seconds = (now - at) / tokens
        self._alone, self._slice, self._passed = (self._chunk, now), None, None
        return self._chunk

    def read_beside(self, front: Rank, now: float) -> int:
        """The size of a slice while answers wait for it, the most urgent of this rank."""
        self._alone, self._passed = None, None
        if front not in _SECONDS:
            self._slice = None
            return self._chunk
        most = max(_SECONDS[front], self._pass_seconds)
        size = self._sizes.get(front) or self._first(front, most)
        if self._slice is not None and self._slice[:2] == (front, size):
            took = now - self._slice[2] - self._pass_seconds
            if took > 1.5 * most:
                size //= 2
            elif took < most / 2.5:
                size *= 2
        size = self._sizes[front] = max(min(size, self._chunk), min(_LEAST, self._chunk))
        self._slice = front, size, now
        return size

    def passed(self, now: float) -> None:
        """A pass begins."""
        if self._passed is not None:
            took = now - self._passed
            self._pass_seconds += (took - self._pass_seconds) * (0.1 if self._pass_seconds else 1.0)
            # Nobody reads a prompt any more.
            self._slice = None
        self._alone, self._passed = None, now

    def _first(self, front: Rank, most: float) -> int:
        size = _BEGIN[front]
        # On a card this is no more than what the launches took, so that it only ever makes a slice smaller.
        while size > _LEAST and size * self._token_seconds > most:
            size //= 2
        return size
