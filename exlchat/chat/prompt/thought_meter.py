"""How long a model thinks before it answers, measured while its text comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from exlchat.chat.prompt.thinking import ThinkingMarks, ThinkingSplitter


@dataclass(frozen=True, slots=True)
class Thought:
    """`tokens` of the thoughts with their marks, and the seconds from the first of them to the first of the answer."""

    tokens: int
    seconds: float


class ThoughtMeter:
    """Counts until the answer begins; `thought` is `None` where nothing was thought."""

    def __init__(self, marks: ThinkingMarks | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._splitter = None if marks is None else ThinkingSplitter(marks)
        self._clock = clock
        self._began: float | None = None
        self._tokens = 0
        self._seconds = 0.0
        self._thought = False

    def add(self, text: str, tokens: int) -> None:
        """More text, of so many tokens."""
        if self._splitter is None:
            return
        now = self._clock()
        self._began = now if self._began is None else self._began
        pieces = self._splitter.feed(text)
        self._thought = self._thought or any(piece.kind == "thinking" for piece in pieces)
        self._seconds = now - self._began
        if any(piece.kind == "answer" for piece in pieces):
            self._splitter = None
        else:
            self._tokens += tokens

    @property
    def thought(self) -> Thought | None:
        """What there was of it."""
        return Thought(self._tokens, round(self._seconds, 3)) if self._thought else None
