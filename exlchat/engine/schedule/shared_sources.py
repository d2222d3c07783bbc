"""How the answers under way get their tokens: each by itself, drawn one by one behind a pass, or ahead of the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answer_sources import AnswerSources
from exlchat.engine.schedule.batch import BatchedRunAhead
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.host_draws import BatchedHostDraws
from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.engine.schedule.work import Work
from exlchat.ext.products import MAX_ROWS

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_Way = Literal["own", "together", "ahead"]


class SharedSources:
    """Of one model.

    Args:
        own: of answers that have the model to themselves.
        graphs: without them answers take turns.
        rules: of the model.
    """

    def __init__(self, own: AnswerSources, graphs: DecodeGraphs | None, rules: DeviceRules) -> None:
        self._own = own
        self._together = None if graphs is None else BatchedHostDraws(graphs, rules)
        self._ahead = None if graphs is None else BatchedRunAhead(graphs, rules)
        self._way: _Way = "own"

    def choose(self, answering: Sequence[Work]) -> None:
        """How these get their tokens; sources of another kind are left."""
        way: _Way = "own"
        if len(answering) > 1:
            if self._ahead is not None and _drawn_in_passes(self._ahead, answering):
                way = "ahead"
            elif self._together is not None:
                way = "together"
        if way != self._way:
            for work in answering:
                work.leave_source()
            self._way = way

    def open(self, state: GenerationState) -> TokenSource:
        """A source behind the last token of an answer, which is not in its sequence yet."""
        if self._way == "ahead" and self._ahead is not None:
            return self._own.foreseen(state) if state.foresees else self._ahead.open(state)
        if self._way == "together" and self._together is not None:
            return self._together.open(state)
        return self._own.open(state)

    def behind(self) -> Collection[GenerationState]:
        """See `BatchedRunAhead.behind`."""
        return () if self._ahead is None else self._ahead.behind()

    def runs_ahead(self, work: Work) -> bool:
        """Whether the next pass does not wait until the host has told its token."""
        return self._way == "ahead" and work.ahead


def _drawn_in_passes(passes: BatchedRunAhead, answering: Sequence[Work]) -> bool:
    if all(work.ahead for work in answering):
        return True
    drawn = all(work.on_device for work in answering)
    return drawn and MAX_ROWS < len(answering) <= passes.step.wide.most
