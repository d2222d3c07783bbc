"""The requests of a run, asked of an engine so many at a time, and their answers written as they end."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from exlchat.api.asked import Asked, Speaker, ask_chat, ask_completion
from exlchat.api.errors import told_error
from exlchat.api.fields import Fields
from exlchat.bulk.figures import Figures
from exlchat.bulk.lines import CHAT, COMPLETIONS, SCORE, Line, Lines, in_reading_order
from exlchat.bulk.output import Output
from exlchat.bulk.scoring import ask_score
from exlchat.llm.events import Event, Finished, Scored, TextDelta
from exlchat.llm.limits import LARGEST_SEED
from exlchat.llm.port import Failed, Handle
from exlchat.llm.request import GenerationRequest, Rank, ScoreRequest

_LOOK_SECONDS = 0.5
"""Between two looks at whether the run is to end and at what answers have come to, while none begins or ends."""
_MOST_FAILURES = 16
"""So many requests in a row that fail without being at fault: then it is the engine."""
_NOT_AT_FAULT = 500
"""From here on a status says nothing of the request."""
_AN_ANSWER = 400
"""Weight of an answer beside the bytes of its request."""

_ASK = {CHAT: ask_chat, COMPLETIONS: ask_completion, SCORE: ask_score}


class EngineFailedError(Exception):
    """One line: why the run cannot go on. What was answered is written."""


@dataclass(slots=True)
class _Going:
    """A request that the engine works at."""

    asked: Asked
    began: float
    handles: list[Handle]
    begun: bool = False


_Told = tuple[int, _Going, int, Event | Scored | Failed]
"""Of which request of the file, asked at which time, of which of the engine's, and what."""


class BulkRun:
    """Of one file. What fails without being at fault is asked once more: one of several servers may have gone.

    Args:
        lines, output: what is asked, and where answers go.
        speaker: who answers.
        rows: answers that are asked for at a time.
        figures: is kept up to date.
        wanted: asked before each look at what the engine has said: whether the run is to go on.
        tell: called behind each look, twice a second at least.
    """

    def __init__(
        self,
        lines: Lines,
        output: Output,
        speaker: Speaker,
        *,
        rows: int,
        figures: Figures,
        wanted: Callable[[], bool],
        tell: Callable[[], None],
    ) -> None:
        self._lines, self._output, self._speaker = lines, output, speaker
        self._rows, self._figures, self._wanted, self._tell = rows, figures, wanted, tell
        self._told: deque[_Told] = deque()
        self._due = threading.Event()
        self._ready: deque[tuple[int, Asked]] = deque()
        self._going: dict[int, _Going] = {}
        self._asked_again: set[int] = set()
        self._failures = 0

    def run(self) -> None:
        """Until all are answered, or nobody wants more; those that run are given up then.

        Raises:
            OutputError: an answer cannot be written.
            EngineFailedError: the engine answers nothing any more.
        """
        coming = iter(places_to_ask(self._lines, self._output))
        try:
            self._begin(coming)
            while self._going and self._wanted():
                self._take()
                self._begin(coming)
                self._tell()
        finally:
            for going in self._going.values():
                for handle in going.handles:
                    handle.cancel()

    def _begin(self, coming: Iterator[int]) -> None:
        """Asks until enough is under way, or no more comes. A request for more answers than that goes alone."""
        while True:
            if not self._ready:
                if (place := next(coming, None)) is None:
                    return
                self._read(place)
                continue
            place, asked = self._ready[0]
            under_way = sum(len(one.handles) for one in self._going.values())
            if under_way and under_way + len(asked.requests) > self._rows:
                return
            self._ready.popleft()
            self._ask(place, asked)

    def _read(self, place: int) -> None:
        line = self._lines[place]
        try:
            asked = _ASK[line.url](Fields({**line.body, "stream": False}), self._who)
        except Exception as error:
            self._fail(place, error, time.monotonic())
        else:
            self._ready.append((place, asked))

    def _ask(self, place: int, asked: Asked) -> None:
        line, handles = self._lines[place], list[Handle]()
        self._going[place] = going = _Going(asked, time.monotonic(), handles)
        try:
            for index, request in enumerate(asked.requests):
                same = self._repeatable(line, index, request)
                handles.append(self._speaker.model.engine.submit(same, self._sink(place, going, index)))
        except Exception as error:
            self._fail(place, error, going.began)

    def _who(self, name: str) -> Speaker:
        """A run has one model; whatever other servers call it is told back."""
        return replace(self._speaker, name=name) if name else self._speaker

    def _repeatable(
        self, line: Line, index: int, request: GenerationRequest | ScoreRequest
    ) -> GenerationRequest | ScoreRequest:
        # A line may wait for the others, and go before nobody who asks by himself.
        rank = max(request.rank, Rank.BULK)
        if isinstance(request, ScoreRequest):
            return replace(request, rank=rank)
        seed = request.seed
        if seed is None:
            # The same whenever it is asked, and whatever was before it.
            asked = hashlib.sha256(f"{line.digest} {line.id} {index}".encode()).digest()
            seed = int.from_bytes(asked[:8]) % (LARGEST_SEED + 1)
        return replace(request, seed=seed, keep_pages=False, rank=rank)

    def _sink(self, place: int, going: _Going, index: int) -> Callable[[Event | Scored | Failed], None]:
        def told(event: Event | Scored | Failed) -> None:
            self._told.append((place, going, index, event))
            # In the engine's thread, which has to wait for the run's whenever that wakes: not for every token.
            if not (going.begun and isinstance(event, TextDelta)):
                self._due.set()

        return told

    def _take(self) -> None:
        """What the engine has said since."""
        self._due.wait(_LOOK_SECONDS)
        self._due.clear()
        texts: dict[tuple[int, int], list[TextDelta]] = {}
        for _ in range(len(self._told)):
            place, going, index, event = self._told.popleft()
            # Of one that has failed more may come.
            if self._going.get(place) is not going:
                continue
            if isinstance(event, TextDelta):
                texts.setdefault((place, index), []).append(event)
                continue
            self._texts_taken(place, going, index, texts.pop((place, index), ()))
            self._taken(place, going, index, event)
        for (place, index), deltas in texts.items():
            # None are asked meanwhile: it is the same request, or has failed.
            if (still := self._going.get(place)) is not None:
                self._texts_taken(place, still, index, deltas)

    def _texts_taken(self, place: int, going: _Going, index: int, deltas: Sequence[TextDelta]) -> None:
        for channel, together in groupby(deltas, lambda delta: delta.channel):
            parts = list(together)
            text = TextDelta(
                "".join(part.text for part in parts),
                tuple(id_ for part in parts for id_ in part.token_ids),
                tuple(chance for part in parts for chance in part.chances),
                channel,
            )
            self._taken(place, going, index, text)

    def _taken(self, place: int, going: _Going, index: int, event: Event | Scored | Failed) -> None:
        if not going.begun:
            going.begun = True
            self._figures.runs(1)
        if isinstance(event, Failed):
            self._fail(place, event.error, going.began)
            return
        if isinstance(event, TextDelta):
            self._figures.made(len(event.token_ids))
        elif isinstance(event, Finished):
            self._figures.read(event.stats.prompt_tokens, event.stats.cached_tokens)
        elif isinstance(event, Scored):
            self._figures.read(len(event.places), 0)
        # The chunks of a stream, which nobody wants.
        for _ in going.asked.reply.feed(index, event):
            pass
        if going.asked.reply.ended:
            self._failures = 0
            self._write(place, 200, going.asked.reply.whole(), going.began)

    def _fail(self, place: int, error: Exception, began: float) -> None:
        told = told_error(error)
        going = self._going.get(place)
        for handle in () if going is None else going.handles:
            handle.cancel()
        if told.status >= _NOT_AT_FAULT and going is not None and place not in self._asked_again:
            self._asked_again.add(place)
            self._gone(place)
            self._read(place)
            return
        self._write(place, told.status, told.body(), began)
        self._failures = self._failures + 1 if told.status >= _NOT_AT_FAULT else 0
        if self._failures >= _MOST_FAILURES:
            raise EngineFailedError(f"{_MOST_FAILURES} requests in a row have failed; the last of them: {told.message}")

    def _write(self, place: int, status: int, body: dict[str, Any], began: float) -> None:
        self._gone(place)
        self._output.write(place, status, body)
        self._figures.ended(status, weight(self._lines, place), time.monotonic() - began)

    def _gone(self, place: int) -> None:
        going = self._going.pop(place, None)
        if going is not None and going.begun:
            self._figures.runs(-1)


def places_to_ask(lines: Lines, output: Output) -> list[int]:
    return in_reading_order(lines, [place for place in range(len(lines)) if place not in output.done])


def weight(lines: Lines, place: int) -> float:
    """How long a request takes, beside the others."""
    return lines.size(place) + _AN_ANSWER
