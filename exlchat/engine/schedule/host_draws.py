"""Several answers whose tokens go through the weights together, and are drawn one by one before the next pass.

So it is where the host has to know something before a draw (a grammar, chances that are asked for), and where it draws
itself (skew, Mirostat beside others).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.sampling.device import is_steered, why_not_on_device
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.token_sources import draw_once
from exlchat.llm.events import DecodePath
from exlchat.llm.request import GenerationRequest

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs


def drawn_on_device(request: GenerationRequest) -> bool:
    """Whether the device can draw the tokens of an answer in a wide pass."""
    if is_steered(request.sampling) and (request.alternatives or request.constraint or may_go_back(request)):
        return False
    return why_not_on_device(request.sampling) is None


def drawn_by_host(request: GenerationRequest) -> bool:
    """Whether each token of an answer beside few others is drawn on the host."""
    return bool(request.alternatives) or is_steered(request.sampling) or not drawn_on_device(request)


def may_go_back(request: GenerationRequest) -> bool:
    """Whether drawn tokens may be taken back: what Mirostat came to on a device by them is not known any more."""
    return bool(request.banned) or (request.thoughts is not None and request.thoughts.tokens is not None)


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

    def check(self) -> None:
        """Raises what a failed card does."""
        self._graphs.check()

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
            drawn = self.state.draw(logits)
            self._together.check()
            return drawn
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

    def stands_by(self) -> bool:
        return False

    def close(self) -> None:
        self._together.close(self)
