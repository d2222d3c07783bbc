"""Several answers whose tokens go through the weights together: a pass takes a token of each sequence.

Each answer is, to the last bit, what it would be alone with its seed, whatever the others ask for: eight read the
weights as often as one. Where the host has to know something before a draw (a grammar, chances that are asked for),
every token of a pass is drawn before the next one is launched. Where it has not, each pass feeds what the one before
has drawn: the host reads one pass behind. It launches the next one as soon as the first answer has read its token and
goes on, so that the device works while the host turns tokens into text and asks whether the others end. An answer that
ended in the meantime has one token computed in vain. When one comes, ends, or goes back from a banned string, the rows
of a pass are put together anew.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from torch import Tensor

from exlchat.engine.decode.draws import DecodeRow
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.sampling.device import is_steered, why_not_on_device
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.token_sources import check_drawn, draw_once, wait_for
from exlchat.ext.sampling import TokenRing
from exlchat.llm.events import DecodePath
from exlchat.llm.info import ModelError
from exlchat.llm.request import GenerationRequest

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs


def drawn_by_host(request: GenerationRequest) -> bool:
    """Whether each token of an answer beside others is drawn on the host; Mirostat's state is kept there."""
    sampling = request.sampling
    return bool(request.alternatives) or is_steered(sampling) or why_not_on_device(sampling) is not None


def may_run_ahead(request: GenerationRequest) -> bool:
    """Whether the host needs to know nothing before a draw."""
    return request.constraint is None and not drawn_by_host(request)


class BatchedHostDraws:
    """Sources of several answers, each behind the last token of its own.

    Args:
        graphs: take one token of each, and draw on the device.
        rules: of the model.
    """

    def __init__(self, graphs: DecodeGraphs, rules: DeviceRules) -> None:
        self._graphs = graphs
        self._rules = rules
        self._open: list[_HostDrawn] = []

    def open(self, state: GenerationState) -> _HostDrawn:
        source = _HostDrawn(self, state)
        self._open.append(source)
        return source

    def close(self, source: _HostDrawn) -> None:
        if source in self._open:
            self._open.remove(source)

    def feed(self) -> None:
        """The last token of every answer that waits for what comes behind it."""
        waiting = [one for one in self._open if one.wants and one.has_room]
        ids = [one.state.context[-1] for one in waiting]
        caches = [one.state.parts.sequence for one in waiting]
        for one in self._open:
            if one.logits is not None:  # a pass uses the memory of the one before again
                one.logits = one.logits.clone()
        rows = self._graphs.feed_each(ids, caches)
        for one, token, logits in zip(waiting, ids, rows, strict=True):
            one.logits, one.wants = logits, False
            one.state.parts.sequence.extend([token])

    def draw(self, logits: Tensor, state: GenerationState) -> int:
        """The next token of an answer, on the device."""
        return draw_once(self._graphs, logits, state.context, self._rules.draws(state), state.parts.rules.mask)


class _HostDrawn:
    """The tokens of one of them. A `TokenSource`."""

    path: DecodePath = "synchronous"
    busy = False

    def __init__(self, together: BatchedHostDraws, state: GenerationState) -> None:
        self.state = state
        self.logits: Tensor | None = None
        """Behind the last token, where it has been fed."""
        self.wants = False
        """Whether its answer goes on behind the last token, which has not been fed."""
        self._together = together
        self._by_host = drawn_by_host(state.parts.request)

    def follow(self, token: int) -> int:
        if self.logits is None:
            self._together.feed()
        logits, self.logits = self.logits, None
        assert logits is not None
        assert token == self.state.context[-1]
        if self._by_host:
            return self.state.draw(logits)
        return self._together.draw(logits, self.state)

    @property
    def has_room(self) -> bool:
        """Whether the next pass can store what it feeds of this one."""
        try:
            self.state.reserve()
        except PoolFullError:
            return False
        return True

    def go_on(self) -> None:
        self.wants = True

    def close(self) -> None:
        self._together.close(self)


class BatchedRunAhead:
    """Sources of answers for which `may_run_ahead`.

    Args:
        step: idle between requests.
        rules: of the model.
    """

    def __init__(self, step: DecodeGraphs, rules: DeviceRules) -> None:
        self.step = step
        self._rules = rules
        self._open: list[_Ahead] = []
        self._formed: list[_Ahead] = []
        self._most = 0
        self.launched = 0
        """Passes since the rows were put together."""

    def open(self, state: GenerationState) -> _Ahead:
        source = _Ahead(self, state)
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
        same = len(self._formed) == len(self._open) and all(one.slot is not None for one in self._open)
        return same and self.launched < self._most and all(one.has_room for one in self._formed)

    def _form(self) -> None:
        """Who has something left to read waits for the next time, so that all are at the same token again soon."""
        for one in self._formed:
            one.drain()
        formed = [one for one in self._open if not one.busy and one.has_room and one.most > 0]
        # A pass is captured for each order of kinds of draws: as few as there can be.
        self._formed = sorted(formed, key=lambda one: one.row(self._rules).draws.kind)
        self.launched = 0
        for slot, one in enumerate(self._formed):
            one.slot = slot
        self._most = min(one.most for one in self._formed)
        self.step.begin_rows([one.row(self._rules) for one in self._formed])

    def _launch(self) -> None:
        self.step.launch()
        self.launched += 1


class _Ahead:
    """The tokens of one of them. A `TokenSource`."""

    path: DecodePath = "run-ahead"

    def __init__(self, together: BatchedRunAhead, state: GenerationState) -> None:
        self._together = together
        self._state = state
        self._closed = False
        self.slot: int | None = None
        """Of the passes; `None` where it is in none."""
        self._read = 0  # reports of the passes that it is in
        self._kept: list[tuple[int, int]] = []  # reports of passes before, that nobody has asked for yet

    @property
    def busy(self) -> bool:
        return self._unread > 0

    @property
    def ring(self) -> TokenRing:
        assert self.slot is not None
        return self._together.step.row_ring(self.slot)

    @property
    def most(self) -> int:
        """How many tokens may still come of the passes."""
        return self._state.most - self._unread

    @property
    def has_room(self) -> bool:
        try:
            self._state.parts.sequence.reserve(len(self._state.context) + self._unread)
        except PoolFullError:
            return False
        return True

    @property
    def _unread(self) -> int:
        return len(self._kept) + (0 if self.slot is None else self._together.launched - self._read)

    def drain(self) -> None:
        while self.slot is not None and self._read < self._together.launched:
            self._kept.append(self._report())
        self.slot, self._read = None, 0

    def running(self) -> bool:
        return self._together.step.running()

    def row(self, rules: DeviceRules) -> DecodeRow:
        return DecodeRow(self._state.parts.sequence, self._state.context, rules.draws(self._state))

    def follow(self, token: int) -> int:
        if not self.busy:
            self._together.launch_next()
        found, status = self._kept.pop(0) if self._kept else self._report()
        check_drawn(status)
        self._state.parts.sequence.extend((token,))
        return found

    def go_on(self) -> None:
        if self.slot is not None:
            self._together.launch_ahead(self)

    def close(self) -> None:
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
