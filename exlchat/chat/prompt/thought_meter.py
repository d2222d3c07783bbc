"""How long a model thinks before it answers, measured while its text comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from exlchat.llm.events import TextDelta


@dataclass(frozen=True, slots=True)
class Thought:
    """`tokens` of the thoughts with their marks, and the seconds from the first of them to the first of the answer."""

    tokens: int
    seconds: float


class ThoughtMeter:
    """Counts until the answer begins; `thought` is `None` where nothing was thought."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._tokens = 0
        self._seconds = 0.0
        self._thought = self._answered = False

    def add(self, delta: TextDelta) -> None:
        if self._answered:
            return
        now = self._clock()
        self._began = now if self._began is None else self._began
        self._seconds = now - self._began
        self._thought = self._thought or delta.channel == "thought"
        self._answered = bool(delta.text) and delta.channel == "answer"
        if not self._answered:
            self._tokens += len(delta.token_ids)

    @property
    def thought(self) -> Thought | None:
        return Thought(self._tokens, round(self._seconds, 3)) if self._thought else None
