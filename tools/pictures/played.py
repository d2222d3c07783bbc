"""A model that says what is written for it, where something is, and else what it would say by itself.

It reads each prompt and each answer all the same, so what is told of tokens and of the cache is so.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.llm.events import Finished, GenerationStats, OneOfSeveral, PrefillProgress, TextDelta
from exlchat.llm.port import Running
from exlchat.llm.thought_splitter import told_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from exlchat.engine import LocalEngine
    from exlchat.llm.constraint import Constraint
    from exlchat.llm.events import Event, Scored
    from exlchat.llm.info import CacheReport, MemoryReport, ModelInfo
    from exlchat.llm.port import Capabilities, Failed, Handle
    from exlchat.llm.request import GenerationRequest, ScoreRequest

FIRST_TOKEN_SECONDS = 0.1
"""What is told of the first token: one frame of the tour later."""
_PATIENCE_SECONDS = 60.0


class PlayedEngine:
    """An `Engine`. With `hold()` each token waits for `step(n)` or `release()`.

    Args:
        guide: the model that reads, and that answers where nothing is written.
        rate: tokens a second that answers are told to have come with, as whoever looks at them sees it.
    """

    def __init__(self, guide: LocalEngine, rate: float) -> None:
        self._guide = guide
        self._rate = rate
        self._written: deque[str] = deque()
        self._changed = threading.Condition()
        self._held = self._cancelled = False
        self._steps = 0
        self._said: Running[Event] | None = None

    def say(self, *answers: str) -> None:
        """What the next answers say."""
        self._written.extend(answers)

    def hold(self) -> None:
        """From here on tokens wait."""
        with self._changed:
            self._held, self._steps = True, 0

    def step(self, tokens: int) -> None:
        """Let some tokens through."""
        with self._changed:
            self._steps += tokens
            self._changed.notify_all()

    def release(self) -> None:
        """Let all tokens through."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    @property
    def info(self) -> ModelInfo:
        """As of the guide, and so on."""
        return self._guide.info

    @property
    def capabilities(self) -> Capabilities:
        """Of the guide."""
        return self._guide.capabilities

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """By the guide."""
        return self._guide.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """By the guide."""
        return self._guide.decode(ids, special=special)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """By the guide."""
        return self._guide.cached_tokens(ids)

    def cache_report(self) -> CacheReport:
        """By the guide."""
        return self._guide.cache_report()

    def memory_report(self) -> MemoryReport:
        """By the guide."""
        return self._guide.memory_report()

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """By the guide."""
        return self._guide.score(request)

    def close(self) -> None:
        """Of the guide."""
        self._guide.close()

    def check(self, request: GenerationRequest) -> None:
        """By the guide."""
        self._guide.check(request)

    def submit(
        self, request: GenerationRequest | ScoreRequest, sink: Callable[[Event | Scored | Failed], None]
    ) -> Handle:
        """By the guide."""
        return self._guide.submit(request, sink)

    def constraint_notice(self, constraint: Constraint) -> str | None:
        """By the guide."""
        return self._guide.constraint_notice(constraint)

    def unload(self) -> None:
        """Of the guide."""
        self._guide.unload()

    def cancel(self) -> None:
        """Stop the answer, one that waits as well."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
            said = self._said
        if said is not None:
            said.cancel()

    def generate(self, request: GenerationRequest) -> Running[Event]:
        """What is written for it, or the guide's answer."""
        self._cancelled = False
        return Running(self._events(request), self.cancel)

    def _events(self, request: GenerationRequest) -> Iterator[Event]:
        written = self._written.popleft() if self._written else None
        if written is None:
            self._said = said = self._guide.generate(request)
        else:
            said = Running(told_apart(self._played(request, written), request.thoughts), lambda: None)
        with said as coming:
            for event in coming:
                if isinstance(event, TextDelta):
                    self._wait()
                yield self._paced(event) if isinstance(event, Finished) else event

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """One behind the other, as they are written."""
        self._cancelled = False
        return Running(self._several(request, seeds), self.cancel)

    def _several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        for index, seed in enumerate(seeds):
            for event in self._events(replace(request, seed=seed)):
                if not isinstance(event, PrefillProgress):
                    yield OneOfSeveral(index, event)
                elif index == 0:
                    yield event

    def _played(self, request: GenerationRequest, text: str) -> Iterator[Event]:
        prompt = list(request.prompt_ids)
        cached = self._read(request, prompt)
        yield PrefillProgress(len(prompt), len(prompt), cached)
        ids = self.encode(text, special=False)
        said: list[int] = []
        shown = ""
        for one in ids:
            if self._cancelled:
                break
            said.append(one)
            whole = self.decode(said)
            # A character may have several tokens.
            if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
                yield TextDelta(whole[len(shown) :], (one,))
                shown = whole
            else:
                yield TextDelta("", (one,))
        self._read(request, [*prompt, *said])
        stats = GenerationStats(len(prompt), cached, len(said), 0.0, 0.0, 0.0, request.seed or 0)
        yield Finished("cancelled" if self._cancelled else "stop_token", stats, shown, tuple(said))

    def _read(self, request: GenerationRequest, ids: list[int]) -> int:
        """Have the guide read it; how much of it was in the cache already."""
        cached = 0
        for event in self._guide.generate(replace(request, prompt_ids=ids, max_new_tokens=1)):
            if isinstance(event, Finished):
                cached = event.stats.cached_tokens
        return cached

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or not self._held or self._steps, timeout=_PATIENCE_SECONDS)
            self._steps -= bool(self._steps)

    def _paced(self, event: Finished) -> Finished:
        """With times as they are seen, not as the making of the picture took them."""
        tokens = event.stats.new_tokens
        stats = replace(
            event.stats,
            time_to_first_token=FIRST_TOKEN_SECONDS,
            prefill_seconds=FIRST_TOKEN_SECONDS,
            decode_seconds=max(tokens - 1, 0) / self._rate,
        )
        return replace(event, stats=stats)
