"""Counts and times of one answer, noted while it is made."""

from __future__ import annotations

import time

from exlchat.engine.draft.drafting import DraftCount
from exlchat.llm.events import DecodePath, GenerationStats
from exlchat.llm.request import GenerationRequest


class AnswerClock:
    """Begins with the request. Each method notes that something has just happened, or tells what was noted."""

    def __init__(self, request: GenerationRequest, seed: int) -> None:
        self.seed = seed
        self.cached = 0
        self.path: DecodePath = "synchronous"
        self.rows = 1
        self.exact = True
        self._prompt_tokens = len(request.prompt_ids)
        self._start = time.perf_counter()
        self._found = self._prefill_end = self._first = self._last = 0.0
        self._tokens = self._rewound = 0
        self.drafts = DraftCount()

    def looked_up(self, cached: int) -> None:
        """So much of the prompt was cached; computing the rest begins."""
        self.cached = cached
        self._found = self._found or time.perf_counter()

    def computed(self) -> tuple[int, float]:
        """Tokens of the prompt that were computed, and seconds until now."""
        return self._prompt_tokens - self.cached, time.perf_counter() - self._found

    def prefilled(self) -> None:
        self._prefill_end = time.perf_counter()

    def token(self) -> None:
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._tokens += 1

    def back(self, count: int) -> None:
        self._tokens -= count
        self._rewound += count

    def beside(self, rows: int, *, exact: bool) -> None:
        """A pass of so many answers."""
        self.rows = max(self.rows, rows)
        self.exact = self.exact and exact

    def stats(self) -> GenerationStats:
        """All of it; times that have not come are 0.0."""
        return GenerationStats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self.cached,
            new_tokens=self._tokens,
            time_to_first_token=self._first - self._start if self._first else 0.0,
            prefill_seconds=self._prefill_end - self._start,
            decode_seconds=self._last - self._first,
            seed=self.seed,
            decode_path=self.path,
            drafted=self.drafts.drafted,
            accepted=self.drafts.accepted,
            rewound=self._rewound,
            rows=self.rows,
            exact=self.exact,
        )
