"""Several answers whose tokens the device draws: each pass feeds what the one before has drawn for each of them.

The host reads one pass behind. It launches the next one as soon as the first answer has read its token and goes on, so
that the device works while the host turns tokens into text and asks whether the others end. An answer that ended in
the meantime has one token computed in vain. When one ends, or comes back from a banned string, the rows of a pass are
put together anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answering import Answering, AnswerParts
from exlchat.engine.schedule.run_ahead import check_drawn, wait_for
from exlchat.engine.schedule.several import drawn_by_host
from exlchat.ext.sampling import TokenRing
from exlchat.llm.events import DecodePath
from exlchat.llm.info import ModelError
from exlchat.llm.request import GenerationRequest, RequestError


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of a pass.

    Args:
        sequence: of the model that the passes are of.
        context: prompt and answer so far; all but its last token are in the sequence.
        draws: of the next token of the answer, and of those behind it.
    """

    sequence: KVSequence
    context: Sequence[int]
    draws: DeviceDraws


class SeveralStep(Protocol):
    """A captured pass of a token of each of several sequences, which draws the next token of each and feeds itself.

    Everything happens on one stream, in the order of the calls.
    """

    def begin(self, rows: Sequence[Row]) -> None:
        """The next pass feeds the last token of each context. All passes before have reported.

        All rows draw with the same kernels (`DeviceDraws.kind`). Raises `ModelError` for want of memory.
        """

    def launch(self) -> None:
        """Enqueues a pass and returns; each sequence has room for the token that it feeds."""

    def ring(self, row: int) -> TokenRing:
        """Where the draws of a row report, numbered from 1 on."""

    def running(self) -> bool:
        """Whether a launched pass has not ended. Raises `RuntimeError` when the device has failed."""


def may_run_ahead(request: GenerationRequest) -> bool:
    """Whether the host needs to know nothing before a draw."""
    return request.constraint is None and not drawn_by_host(request)


class SeveralAhead:
    """Sources of several answers to one request, for which `may_run_ahead`.

    Args:
        step: idle between requests.
        rules: of the model.
    """

    def __init__(self, step: SeveralStep, rules: DeviceRules) -> None:
        self.step = step
        self._rules = rules
        self._open: list[_Ahead] = []
        self._formed: list[_Ahead] = []
        self._most = 0
        self.launched = 0
        """Passes since the rows were put together."""

    def open(self, parts: AnswerParts, answer: Answering) -> _Ahead:
        """A source behind the last token of an answer, which is not in the cache yet."""
        source = _Ahead(self, parts, answer)
        self._open.append(source)
        return source

    def leave(self, source: _Ahead) -> None:
        """It wants no more tokens, and nothing is under way for it."""
        if source in self._open:
            self._open.remove(source)
        if not self._open:
            self._formed = []

    def launch_next(self) -> None:
        """A pass for all that can go on; the one that asks has nothing left to read."""
        if not self._fits:
            self._form()
        self._launch()

    def launch_ahead(self, source: _Ahead) -> None:
        """The next pass, if it is not under way, and if there is one for the same rows."""
        if not source.busy and self._fits:
            self._launch()

    @property
    def _fits(self) -> bool:
        """Whether there is a next pass for the same rows: all that are open, each with something to say and room."""
        same = self._formed == self._open and self.launched < self._most
        return same and all(one.has_room for one in self._formed)

    def _form(self) -> None:
        """Who has something left to read waits for the next time, so that all are at the same token again soon."""
        for one in self._formed:
            one.drain()
        self._formed = [one for one in self._open if not one.busy and one.has_room and one.most > 0]
        self.launched = 0
        for slot, one in enumerate(self._formed):
            one.slot = slot
        self._most = min(one.most for one in self._formed)
        self.step.begin([one.row(self._rules) for one in self._formed])

    def _launch(self) -> None:
        self.step.launch()
        self.launched += 1


class _Ahead:
    """The tokens of one of them. A `TokenSource`."""

    path: DecodePath = "run-ahead"

    def __init__(self, together: SeveralAhead, parts: AnswerParts, answer: Answering) -> None:
        self._together = together
        self._parts = parts
        self._answer = answer
        self._closed = False
        self.slot: int | None = None
        """Of the passes; `None` where it is in none."""
        self._read = 0  # reports of the passes that it is in
        self._kept: list[tuple[int, int]] = []  # reports of passes before, that nobody has asked for yet

    @property
    def busy(self) -> bool:
        """See `TokenSource`."""
        return self._unread > 0

    @property
    def ring(self) -> TokenRing:
        """See `run_ahead.ReportingStep`."""
        assert self.slot is not None
        return self._together.step.ring(self.slot)

    @property
    def most(self) -> int:
        """How many tokens may still come of the passes."""
        request, answer = self._parts.request, self._answer
        room = answer.room - len(answer.context)
        most = room if request.max_new_tokens is None else min(room, request.max_new_tokens - answer.count)
        return most - self._unread

    @property
    def has_room(self) -> bool:
        """Whether the next pass can store what it feeds of this one."""
        try:
            self._parts.feeder.sequence.reserve(len(self._answer.context) + self._unread)
        except PoolFullError:
            return False
        return True

    @property
    def _unread(self) -> int:
        return len(self._kept) + (0 if self.slot is None else self._together.launched - self._read)

    def drain(self) -> None:
        """Leaves the passes, with what they have computed of it."""
        while self.slot is not None and self._read < self._together.launched:
            self._kept.append(self._report())
        self.slot, self._read = None, 0

    def running(self) -> bool:
        """See `run_ahead.ReportingStep`."""
        return self._together.step.running()

    def row(self, rules: DeviceRules) -> Row:
        """As the passes take it."""
        return Row(self._parts.feeder.sequence, self._answer.context, rules.draws(self._parts, self._answer))

    def follow(self, token: int) -> int:
        """See `TokenSource`."""
        if self._closed:
            raise RequestError("this answer was ended by a newer request to the same engine")
        if not self.busy:
            self._together.launch_next()
        found, status = self._kept.pop(0) if self._kept else self._report()
        check_drawn(status)
        self._parts.feeder.sequence.extend((token,))
        return found

    def go_on(self) -> None:
        """See `TokenSource`."""
        if self.slot is not None:
            self._together.launch_ahead(self)

    def close(self) -> None:
        """See `TokenSource`."""
        if self._closed:
            return
        self._closed = True
        with suppress(ModelError):  # a device that has failed works for nobody
            self.drain()
        self.slot = None
        self._together.leave(self)

    def _report(self) -> tuple[int, int]:
        found = wait_for(self, self._read + 1)
        self._read += 1
        return found
