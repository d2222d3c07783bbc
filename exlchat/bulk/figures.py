"""What a run has done so far, and what is left of it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

_RATE_SECONDS = 10.0
"""A rate is that of so long."""


class Figures:
    """Counts of one run, from its first request on.

    Args:
        requests: all there are; `there` of them were answered before.
        weight: of all that are to be answered now, in whatever measure `ended` has.
        clock: seconds.
    """

    def __init__(self, requests: int, there: int, weight: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests, self.there, self._weight = requests, there, weight
        self._clock = clock
        self._began = self._changed = clock()
        self._done_weight = 0.0
        self.answered = 0
        self.failed: Counter[int] = Counter()
        """By status."""
        self.running = 0
        """Answers that the engine makes now."""
        self._running_seconds = 0.0
        self.prompt_tokens = self.cached_tokens = self.new_tokens = 0
        self._latencies: list[float] = []
        self._counted: deque[tuple[float, int]] = deque()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def left(self) -> int:
        return self.requests - self.there - self.answered - self.failed.total()

    @property
    def seconds_left(self) -> float | None:
        """By what was done so far; `None` before anything was."""
        if not self._done_weight:
            return None
        return self.seconds * (self._weight - self._done_weight) / self._done_weight

    @property
    def rate(self) -> float:
        """Tokens a second that were made of late."""
        now = self._clock()
        while self._counted and now - self._counted[0][0] > _RATE_SECONDS:
            self._counted.popleft()
        return sum(count for _, count in self._counted) / min(_RATE_SECONDS, max(now - self._began, 1e-3))

    @property
    def cached_share(self) -> float:
        """Of all tokens of prompts, those that nobody had to compute."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def runs(self, change: int) -> None:
        """So many answers more are being made."""
        now = self._clock()
        self._running_seconds += self.running * (now - self._changed)
        self._changed, self.running = now, self.running + change

    def made(self, tokens: int) -> None:
        self._counted.append((self._clock(), tokens))
        self.new_tokens += tokens

    def read(self, tokens: int, cached: int) -> None:
        """A prompt; so many of its tokens without work."""
        self.prompt_tokens += tokens
        self.cached_tokens += cached

    def ended(self, status: int, weight: float, seconds: float) -> None:
        self._done_weight += weight
        if status == 200:
            self.answered += 1
            self._latencies.append(seconds)
        else:
            self.failed[status] += 1

    def report(self) -> dict[str, Any]:
        """All of it, as JSON."""
        seconds = self.seconds
        self.runs(0)
        latencies = sorted(self._latencies)
        return {
            "requests": self.requests,
            "answered_before": self.there,
            "answered": self.answered,
            "failed": {str(status): count for status, count in sorted(self.failed.items())},
            "left": self.left,
            "seconds": round(seconds, 3),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.new_tokens,
            "generated_tokens_per_second": round(self.new_tokens / seconds, 2) if seconds else 0.0,
            "computed_prompt_tokens_per_second": round((self.prompt_tokens - self.cached_tokens) / seconds, 2)
            if seconds
            else 0.0,
            "rows": round(self._running_seconds / seconds, 2) if seconds else 0.0,
            "latency_seconds": {
                name: round(latencies[int(share * (len(latencies) - 1))], 3) if latencies else None
                for name, share in (("median", 0.5), ("p95", 0.95), ("most", 1.0))
            },
        }
