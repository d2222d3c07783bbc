"""How much of a prompt is read between two passes while somebody is answered: what slices took decides."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

from exlchat.llm.request import Rank

_BEGIN = {Rank.CHAT: 256, Rank.API: 1024, Rank.BULK: 512, Rank.IDLE: 512}
"""Tokens, until something is known: 10, 35 and 18 ms of an 8B on an H200."""
_SECONDS = {Rank.CHAT: 0.011, Rank.API: 0.035, Rank.BULK: 0.018, Rank.IDLE: 0.018}
"""What a slice may take while somebody of such a rank is answered, or as much as a pass where that takes longer: their
tokens then come half as fast, and not slower. Beside the low ranks it is what a chat that comes has to wait for."""
_LEAST = 32
"""Fewer tokens take as long as these, on a card and on a processor."""


class Slices:
    """Of one scheduler.

    Args:
        chunk: tokens that are computed at once where nobody is answered.
        judged: slices of a size by which it is judged. For the first two a card loads and captures what they run.
        lowest: beside ranks below it whole chunks are read. A processor reads a bulk run 8 to 21 % faster so, and a
            chat that comes waits for a pass there in any case.
    """

    def __init__(self, chunk: int, *, judged: int = 1, lowest: Rank = Rank.API) -> None:
        self._chunk, self._judged, self._lowest = chunk, judged, lowest
        self._sizes: dict[Rank, int] = {}
        self._pass_seconds = 0.0
        self._passed: float | None = None
        self._token_seconds = 0.0
        self._seen: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=judged))

    def size(self, front: Rank | None) -> int:
        """Of the next one, while answers wait for it, the most urgent of this rank; `None`: nobody is answered."""
        self._passed = None
        if front is None or front > self._lowest:
            return self._chunk
        size = self._sizes.get(front, _BEGIN[front])
        while size > _LEAST and front not in self._sizes and size * self._token_seconds > self._most(front):
            size //= 2
        self._sizes[front] = max(min(size, self._chunk), min(_LEAST, self._chunk))
        return self._sizes[front]

    def took(self, tokens: int, seconds: float) -> None:
        """A slice of so many has ended, perhaps after others have begun."""
        # Few tokens take as long as more: the least says what one takes.
        self._token_seconds = min(self._token_seconds or seconds / tokens, seconds / tokens)
        seen = self._seen[tokens]
        seen.append(seconds)
        if not self._is_judged(tokens):
            return
        for rank, size in self._sizes.items():
            if tokens == size and median(seen) > 1.2 * self._most(rank):
                self._sizes[rank] = max(size // 2, min(_LEAST, self._chunk))
            elif tokens == size and median(seen) < self._most(rank) / (2.4 if self._is_judged(2 * size) else 1.5):
                self._sizes[rank] = min(size * 2, self._chunk)

    def passed(self, now: float) -> None:
        """A pass begins, by a clock of seconds that only goes on."""
        if self._passed is not None:
            took = now - self._passed
            self._pass_seconds += (took - self._pass_seconds) * (0.1 if self._pass_seconds else 1.0)
        self._passed = now

    def _is_judged(self, tokens: int) -> bool:
        return len(self._seen[tokens]) == self._judged

    def _most(self, front: Rank) -> float:
        return max(_SECONDS[front], self._pass_seconds)
