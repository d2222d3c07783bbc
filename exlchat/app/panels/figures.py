"""The figures of answers: what a status line can tell, how fast one grows, and all that is recorded of one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.chat.model import Message
    from exlchat.llm.events import GenerationStats
    from exlchat.llm.info import ModelInfo

_TOLD_EVERY_SECONDS = 0.25
_INTERVAL_SECONDS = 0.5
_RECENT_INTERVALS = 60


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What the line can tell. `None` and "" are left out. Rates in tokens per second, times in seconds.

    `activity` is what goes on before text appears ("loading weights"), `fraction` how far that has come (0 to 1).
    """

    model: str = ""
    activity: str = ""
    fraction: float | None = None
    context_used: int | None = None
    context_max: int | None = None
    rate: float | None = None
    cached: int | None = None
    new: int | None = None
    first_token: float | None = None


def facts_of(answer: Message | None, info: ModelInfo | None, before: StatusFacts, *, empty: bool) -> StatusFacts:
    """What is known of the newest answer of a conversation; of one without figures only that it is `empty`.

    The figures of an answer of another model are not those of this one.
    """
    record = answer.record if answer is not None else None
    known = record is not None and (info is None or record.model == info.name)
    stats = record.stats if record is not None and known else None
    facts = StatusFacts(
        model=before.model,
        activity=before.activity if info is None else "",
        fraction=before.fraction if info is None else None,
        context_max=info.max_seq_len if info else None,
        # Without figures of an answer only an empty conversation has a known length.
        context_used=0 if info is not None and empty else None,
    )
    if stats is None:
        return facts
    return replace(
        facts,
        context_used=stats.prompt_tokens + stats.new_tokens,
        rate=stats.tokens_per_second or None,
        cached=stats.cached_tokens,
        new=stats.prompt_tokens - stats.cached_tokens,
        first_token=stats.time_to_first_token,
    )


def describe_figures(answer: Message | None) -> str:
    record = answer.record if answer is not None else None
    if record is None or record.stats is None:
        return "There are no figures for the last answer"
    stats = record.stats
    return (
        f"{one_line(record.model)} · template {record.template} · {stats.new_tokens} tokens at "
        f"{stats.tokens_per_second:.1f} tok/s · prompt {stats.prompt_tokens} tokens, {stats.cached_tokens} of them "
        f"cached · first token {stats.time_to_first_token:.2f} s · reading {stats.prefill_seconds:.2f} s · writing "
        f"{stats.decode_seconds:.2f} s · temperature {record.sampling.temperature:g} · seed {stats.seed} · "
        f"ended by {record.finish_reason}{_drafted(stats)}"
    )


def _drafted(stats: GenerationStats) -> str:
    told = drafted_line(stats)
    return f" · drafted {told}" if told else ""


def drafted_line(stats: GenerationStats) -> str:
    """How many tokens were guessed ahead, and how many of them were right; empty where none were."""
    if not stats.drafted:
        return ""
    return f"{stats.drafted:,} tokens, {stats.accepted:,} right ({stats.accepted / stats.drafted:.0%})"


class GrowingFigures:
    """Of one answer. Times are seconds of a clock that only goes on."""

    def __init__(self) -> None:
        self.begin(0, 0.0)

    def begin(self, prompt_tokens: int, now: float) -> None:
        self.began = now
        """0 before it has."""
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._first_at = self._told_at = 0.0
        self._recent: deque[tuple[int, int]] = deque()

    def add(self, tokens: int, now: float) -> None:
        """More has come."""
        self._first_at = self._first_at or now
        self._tokens += tokens
        at = self._interval(now)
        before = self._recent.pop()[1] if self._recent and self._recent[-1][0] == at else 0
        self._recent.append((at, before + tokens))
        while self._recent[0][0] < at - _RECENT_INTERVALS:
            self._recent.popleft()

    @property
    def tokens(self) -> int:
        return self._tokens

    def rate(self, now: float) -> float | None:
        """Tokens per second since the first; `None` while there are fewer than two."""
        seconds = now - self._first_at
        return (self._tokens - 1) / seconds if seconds > 0 and self._tokens > 1 else None

    def recent(self, now: float) -> list[float]:
        """Tokens per second in each of the last intervals that are over, at most half a minute of them."""
        if not self._first_at:
            return []
        end = self._interval(now)
        came = dict(self._recent)
        return [came.get(at, 0) / _INTERVAL_SECONDS for at in range(max(end - _RECENT_INTERVALS, 0), end)]

    def _interval(self, now: float) -> int:
        return int((now - self._first_at) / _INTERVAL_SECONDS)

    def news(self, before: StatusFacts, now: float) -> StatusFacts | None:
        """The facts as they are now, a few times a second; `None` when they were told just before."""
        if now - self._told_at < _TOLD_EVERY_SECONDS:
            return None
        self._told_at = now
        return replace(
            before,
            activity="",
            fraction=None,
            rate=self.rate(now),
            context_used=self._prompt_tokens + self._tokens,
        )
