"""An engine that says what the test tells it to, one character a token, at the pace the test sets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import TypeVar

from exlchat.engine.grammar import constraint_notice
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import (
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    OneOfSeveral,
    PlaceChances,
    PrefillProgress,
    Scored,
    TextDelta,
    TokenChance,
)
from exlchat.llm.info import CacheReport, MemoryReport, ModelInfo
from exlchat.llm.port import Capabilities, Running
from exlchat.llm.request import GenerationRequest, ScoreRequest
from exlchat.llm.thought_splitter import several_told_apart, told_apart

E = TypeVar("E")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


class ScriptedEngine:
    """An `Engine`. Answers come from `answers` in turn, then "ok" for ever.

    With `hold()` every token waits for `step(n)` or `release()`; a cancel ends the wait.
    """

    def __init__(
        self, *answers: str, max_seq_len: int = 4096, chat_template: str | None = CHATML, name: str = "scripted"
    ) -> None:
        self.closed = self.unloaded = False
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.requests: list[GenerationRequest] = []
        self.scored: list[ScoreRequest] = []
        self.fail_after: int | None = None
        self._changed = threading.Condition()
        self._held = False
        self._steps = 0
        self._info = ModelInfo(
            name=name,
            path=f"models/{name}",
            architecture="LlamaForCausalLM",
            quantization="none",
            parameters=1_000_000,
            vocab_size=0x110000,
            max_seq_len=max_seq_len,
            device="cpu",
            dtype="float32",
            bos_token="",
            eos_token="<|im_end|>",
            stop_ids=(0,),
            special_tokens=("<|im_start|>", "<|im_end|>"),
            chat_template=chat_template,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(draft_model=False)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(chr(one) for one in ids)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        return len(ids) // 2

    def cache_report(self) -> CacheReport:
        return CacheReport("fp16", 256, 2**20, 64, 3, 5, (), 2, 1000, 750, None)

    def memory_report(self) -> MemoryReport:
        return MemoryReport(3 * 2**20, 2**26, 2**30)

    def close(self) -> None:
        self.closed = True

    def unload(self) -> None:
        self.close()
        self.unloaded = True

    def check(self, request: GenerationRequest) -> None:
        """Everything goes."""

    def constraint_notice(self, constraint: Constraint) -> str | None:
        return constraint_notice(constraint)

    def _running(self, events: Callable[[threading.Event], Iterator[E]]) -> Running[E]:
        cancelled = threading.Event()

        def cancel() -> None:
            with self._changed:
                cancelled.set()
                self._changed.notify_all()

        return Running(events(cancelled), cancel)

    def hold(self) -> None:
        """From here on tokens wait."""
        self._held = True

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

    def generate(self, request: GenerationRequest) -> Running[Event]:
        return self._running(lambda cancelled: told_apart(self._events(request, cancelled), request.thoughts))

    def _events(self, request: GenerationRequest, cancelled: threading.Event) -> Iterator[Event]:
        self.requests.append(request)
        self.prompts.append(self.decode(request.prompt_ids))
        total = len(request.prompt_ids)
        yield PrefillProgress(total, total, total // 2)
        answer = self.answers.pop(0) if self.answers else "ok"
        said = ""
        reason: FinishReason = "stop_token"
        for character in answer:
            if not self._may_go_on(cancelled):
                reason = "cancelled"
                break
            if request.max_new_tokens is not None and len(said) >= request.max_new_tokens:
                reason = "max_new_tokens"
                break
            if self.fail_after is not None and len(said) >= self.fail_after:
                raise RuntimeError("the script says: fail")
            said += character
            yield TextDelta(character, (ord(character),))
        stats = GenerationStats(total, total // 2, len(said), 0.25, 0.2, 1.0, request.seed or 7)
        yield Finished(reason, stats, said, tuple(self.encode(said)))

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """A character of each in turn; with `hold()` each waits for a step."""
        return self._running(
            lambda cancelled: several_told_apart(self._several(request, seeds, cancelled), request.thoughts, len(seeds))
        )

    def _several(
        self, request: GenerationRequest, seeds: Sequence[int | None], cancelled: threading.Event
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        answers = [self._events(replace(request, seed=seed), cancelled) for seed in seeds]
        first = [next(one) for one in answers]
        assert isinstance(first[0], PrefillProgress)
        yield first[0]
        going = dict(enumerate(answers))
        while going:
            for index, events in list(going.items()):
                event = next(events)
                assert not isinstance(event, PrefillProgress)
                yield OneOfSeveral(index, event)
                if isinstance(event, Finished):
                    del going[index]

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """Lower case is likely (80 %), a capital is not (10 %, rank 3), a digit is of rank 100; "X" and "Y" compete.

        With `hold()` it waits behind the first half of the sequence.
        """
        self.scored.append(request)
        return self._running(partial(self._scores, request))

    def _scores(self, request: ScoreRequest, cancelled: threading.Event) -> Iterator[PrefillProgress | Scored]:
        total = len(request.ids)
        yield PrefillProgress(total // 2, total, total // 2)
        if self._may_go_on(cancelled):
            yield Scored((*(self._place(token) for token in request.ids[request.start :]), self._place(None)))

    def _place(self, token: int | None) -> PlaceChances:
        rivals = [(ord("X"), 0.6), (ord("Y"), 0.2), (0, 0.05), *((ord("a") + at, 0.01) for at in range(10))]
        if token is None:
            return PlaceChances(None, _ranked([(0, 0.9), (ord("X"), 0.05)]))
        if chr(token).isdigit():
            return PlaceChances(TokenChance(token, log(0.0001), 100), _ranked(rivals))
        chance = 0.1 if chr(token).isupper() else 0.8
        top = _ranked([(token, chance), *(one for one in rivals if one[0] != token)])
        return PlaceChances(next(one for one in top if one.token_id == token), top)

    def _may_go_on(self, cancelled: threading.Event) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: cancelled.is_set() or not self._held or self._steps > 0, timeout=30)
            if self._steps:
                self._steps -= 1
            return not cancelled.is_set()


def _ranked(chances: list[tuple[int, float]]) -> tuple[TokenChance, ...]:
    likeliest = sorted(chances, key=lambda one: -one[1])[:10]
    return tuple(TokenChance(token, log(chance), rank) for rank, (token, chance) in enumerate(likeliest, 1))
