"""Counts and times of a server in Prometheus' text form."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from exlchat.llm.events import GenerationStats
from exlchat.llm.port import Engine, HasCache, HoldsMemory
from exlchat.llm.request import Rank
from exlchat.server.record import Record

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """How many were at most so long."""

    def __init__(self) -> None:
        self._counts = [0] * len(_SECONDS)
        self._many = 0
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._many += 1
        self._sum += seconds
        for number, most in enumerate(_SECONDS):
            self._counts[number] += seconds <= most

    def lines(self, name: str) -> Iterator[str]:
        for most, count in zip(_SECONDS, self._counts, strict=True):
            yield f'{name}_bucket{{le="{most:g}"}} {count}'
        yield f'{name}_bucket{{le="+Inf"}} {self._many}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {self._many}"


class Metrics:
    """Since the server was started. Used on its loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._first_token, self._gaps, self._whole = Histogram(), Histogram(), Histogram()

    def ended(self, path: str, record: Record) -> None:
        """A request to a path that there is, or to "other", however it ended."""
        self._requests[path, record.status] += 1
        if record.left:
            self._left[record.stage] += 1
        if record.model:
            self._whole.add(record.seconds)

    def grown(self, before: float | None) -> None:
        """More of an answer has come; `before` is when the last of it came, if any did."""
        if before is not None:
            self._gaps.add(time.monotonic() - before)

    def answered(self, stats: GenerationStats) -> None:
        """An answer, however it ended."""
        self._tokens["computed"] += stats.prompt_tokens - stats.cached_tokens
        self._tokens["memory"] += stats.cached_tokens
        self._tokens["made"] += stats.new_tokens
        self._tokens["drafted"] += stats.drafted
        self._tokens["accepted"] += stats.accepted
        self._first_token.add(stats.time_to_first_token)

    def text(self, engine: Engine | None, *, running: int, waiting: Counter[Rank], answers: int) -> str:
        """All of it.

        Args:
            engine: the one that is loaded, if any.
            running: requests that are answered now.
            waiting: those that wait for it, by rank.
            answers: of all of them, that have not ended.
        """
        return "".join(f"{line}\n" for line in (*self._own(running, waiting, answers), *_of_engine(engine)))

    def _own(self, running: int, waiting: Counter[Rank], answers: int) -> Iterator[str]:
        yield from _told("exlchat_requests_total", "counter", "Requests that have ended, by path and status.")
        for (path, code), many in sorted(self._requests.items()):
            yield f'exlchat_requests_total{{path="{path}",code="{code}"}} {many}'
        yield from _told(
            "exlchat_cancelled_total", "counter", "Requests whose client left before the end, and at what."
        )
        for stage in ("waiting", "reading", "writing"):
            yield f'exlchat_cancelled_total{{stage="{stage}"}} {self._left[stage]}'
        yield from _told("exlchat_requests_running", "gauge", "Requests that are answered now.")
        yield f"exlchat_requests_running {running}"
        yield from _told("exlchat_requests_waiting", "gauge", "Requests that wait for the engine.")
        for rank in (Rank.API, Rank.BULK, Rank.IDLE):
            yield f'exlchat_requests_waiting{{rank="{rank.name.lower()}"}} {waiting[rank]}'
        yield from _told("exlchat_answers_open", "gauge", "Answers of these requests that have not ended.")
        yield f"exlchat_answers_open {answers}"
        yield from _told("exlchat_prompt_tokens_total", "counter", "Tokens of prompts, and where they came from.")
        for source in ("computed", "memory"):
            yield f'exlchat_prompt_tokens_total{{source="{source}"}} {self._tokens[source]}'
        yield from _told("exlchat_generated_tokens_total", "counter", "Tokens of answers.")
        yield f"exlchat_generated_tokens_total {self._tokens['made']}"
        yield from _told("exlchat_draft_tokens_total", "counter", "Tokens that were guessed ahead.")
        right = self._tokens["accepted"]
        for accepted, tokens in (("true", right), ("false", self._tokens["drafted"] - right)):
            yield f'exlchat_draft_tokens_total{{accepted="{accepted}"}} {tokens}'
        yield from _told("exlchat_ttft_seconds", "histogram", "From the request to the first token, in the engine.")
        yield from self._first_token.lines("exlchat_ttft_seconds")
        yield from _told("exlchat_gap_seconds", "histogram", "Between two pieces of an answer, as they are sent.")
        yield from self._gaps.lines("exlchat_gap_seconds")
        yield from _told("exlchat_request_seconds", "histogram", "Of whole requests for answers.")
        yield from self._whole.lines("exlchat_request_seconds")


def _of_engine(engine: Engine | None) -> Iterator[str]:
    if engine is None:
        return
    if isinstance(engine, HasCache):
        report = engine.cache_report()
        yield from _told("exlchat_pages", "gauge", f"Pages of the cache, {report.page_tokens} tokens each.")
        states = {"running": report.running, "idle": report.idle, "free": report.pages - report.running - report.idle}
        for state, many in states.items():
            yield f'exlchat_pages{{state="{state}"}} {many}'
        yield from _told("exlchat_page_evictions_total", "counter", "Pages whose room was wanted for others.")
        yield f"exlchat_page_evictions_total {report.evictions}"
        yield from _told("exlchat_pauses_total", "counter", "Answers that had to stand still for want of pages.")
        yield f"exlchat_pauses_total {report.pauses}"
        if report.disk is not None:
            yield from _told("exlchat_restored_tokens_total", "counter", "Tokens of prompts that came from the disk.")
            yield f"exlchat_restored_tokens_total {report.disk.restored_tokens}"
    if isinstance(engine, HoldsMemory):
        memory = engine.memory_report()
        yield from _told("exlchat_memory_bytes", "gauge", "Memory in use.")
        known = {"weights": memory.weights, "cache": memory.cache, "program": memory.program}
        if memory.cards:
            known["card"] = sum(card.used for card in memory.cards)
        if len(memory.cards) > 1:
            known |= {card.name: card.used for card in memory.cards}
        for what, many_bytes in known.items():
            yield f'exlchat_memory_bytes{{of="{what}"}} {many_bytes}'


def _told(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
