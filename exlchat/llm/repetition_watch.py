"""Whether an answer is stuck: saying the same over and over."""

from __future__ import annotations

import numpy as np

# A loop is at most so long. Models get stuck in words, lines and paragraphs; a longer passage said again may be meant.
LONGEST = 256
# Tables, rulers and lists of zeros repeat too, so it takes many turns and many tokens to be called stuck.
LEAST_TURNS = 6
LEAST_TOKENS = 240


class RepetitionWatch:
    """Watches the tokens of one answer.

    It is stuck when its last `LEAST_TOKENS` tokens, and at least `LEAST_TURNS` turns, are one passage of at most
    `LONGEST` tokens repeated without a change.
    """

    def __init__(self) -> None:
        self._ids = np.full(1024, -1, dtype=np.int64)
        self._count = 0
        # At index p - 1: how many last tokens each equal the one p before it.
        self._runs = np.zeros(LONGEST, dtype=np.int64)
        self._periods = np.arange(1, LONGEST + 1)
        self._least = np.maximum(LEAST_TOKENS, LEAST_TURNS * self._periods) - self._periods

    @property
    def stuck(self) -> bool:
        return bool((self._runs >= self._least).any())

    def push(self, token: int) -> None:
        if self._count == len(self._ids):
            self._ids = np.concatenate([self._ids, np.full_like(self._ids, -1)])
        near = min(self._count, LONGEST)
        same = np.zeros(LONGEST, dtype=bool)
        same[:near] = self._ids[self._count - near : self._count][::-1] == token
        self._runs = np.where(same, self._runs + 1, 0)
        self._ids[self._count] = token
        self._count += 1

    def back(self, count: int) -> None:
        kept = self._ids[: self._count - count].copy()
        self._count, self._runs = 0, np.zeros_like(self._runs)
        for token in kept.tolist():
            self.push(token)
