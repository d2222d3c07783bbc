"""Several answers whose tokens go through the weights together: a pass takes a token of each sequence.

Each answer is, to the last bit, what it would be alone with its seed, whatever the others ask for: eight read the
weights as often as one. Each pass feeds what the one before has drawn, and two are under way while the host reads a
third: the device has the next one when it ends one, whatever the host does with the tokens. An answer that ended in the
meantime has two tokens computed in vain. When one comes, ends, or goes back from a banned string, the rows of a pass
are put together anew. Where the host has to know something before a draw, `host_draws.py` takes over.

More than eight are a wide pass, whose rows keep their places: who leaves leaves an empty one, who comes takes it, and
the others neither wait nor begin anew. Of thirty-two rows one ends every few passes. There the device also draws for
those of which the host has to know something between two draws: they take their turns first, and the next pass begins
when they have. Mirostat's mu stays on the device while its row keeps its place; who leaves takes along what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from exlchat.engine.decode.draws import DecodeRow
from exlchat.engine.decode.wide import MOST_ROWS, filled_size
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import is_steered
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.scoring import chances
from exlchat.engine.schedule.token_sources import check_drawn, wait_for
from exlchat.ext.products import MAX_ROWS
from exlchat.ext.sampling import DRAWN, TokenRing
from exlchat.llm.events import DecodePath, PlaceChances
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_AHEAD = 2
"""Passes under way while the host reads one."""


class BatchedRunAhead:
    """Sources of answers for which `may_run_ahead`, beside more than eight also of those that are `drawn_on_device`.

    Args:
        step: idle between requests.
        rules: of the model.
    """

    def __init__(self, step: DecodeGraphs, rules: DeviceRules) -> None:
        self.step = step
        self._rules = rules
        self._open: list[_Ahead] = []
        self._formed: list[_Ahead | None] = []
        """Those of the next pass by their places; `None` is an empty one of a wide pass."""
        self._wide = False
        self._left = False
        """Whether one of those has left, of which the step knows nothing."""
        self._until = 0
        self.launched = 0
        """Passes."""

    def open(self, state: GenerationState) -> _Ahead:
        source = _Ahead(self, state)
        self._open.append(source)
        return source

    def leave(self, source: _Ahead) -> None:
        """It wants no more tokens. What is under way for it in a wide pass stands behind its end and is never read."""
        if source in self._open:
            self._open.remove(source)
        if source in self._formed:
            self._formed[self._formed.index(source)] = None
            self._left = True
        if not self._open:
            self._formed = []

    def waits_to_leave(self, source: _Ahead) -> bool:
        """Whether one has to read all that is under way first: its rows would be given to others, or it is the last."""
        return not self._wide or self._open == [source]

    def launch_next(self) -> None:
        """A pass for all that can go on; the one that asks has nothing left to read."""
        if not (self._fits or self._placed_anew()):
            self._form()
        if self._rows:
            self._launch()

    def launch_ahead(self, source: _Ahead) -> None:
        """The next passes, as far as they are not under way, and as their rows need not be put together anew.

        Who lags behind catches up first: without that every one that comes leaves the others a pass more to read, and
        in the end reports are written over that nobody has read.
        """
        while source.placed and source.unread < _AHEAD:
            if any(one.unread > _AHEAD or not one.ready for one in self._rows):
                return
            if not (self._fits or self._placed_anew()):
                return
            self._launch()

    def behind(self) -> set[GenerationState]:
        """Whose next token was drawn a pass before those of the others; asked between two rounds of turns.

        Who came, or was put into a row, when its turn of a round was over is so, and would stay so: it would be told
        each token a round too late.
        """
        return {one.state for one in self._rows if one.unread > _AHEAD}

    def is_read(self) -> bool:
        """Whether nobody of the next pass has anything left to read."""
        return not any(one.busy for one in self._rows)

    def ring(self, place: int) -> TokenRing:
        return self.step.wide.ring(place) if self._wide else self.step.row_ring(place)

    @property
    def _rows(self) -> list[_Ahead]:
        return [one for one in self._formed if one is not None]

    @property
    def _fits(self) -> bool:
        """Whether there is a next pass for the same rows: all that are open, each with something to say and room."""
        rows = self._rows
        same = not self._left and len(rows) == len(self._open) and all(one.placed for one in self._open)
        return same and self.launched < self._until and all(one.ready and one.has_room for one in rows)

    def _form(self) -> None:
        """Who has something left to read waits for the next time, so that all are at the same token again soon."""
        for one in self._open:
            one.drain()
        self._formed = []
        formed = [one for one in self._open if not one.busy and one.goes_on]
        self._wide, self._left = len(formed) > MAX_ROWS or any(one.only_wide for one in formed), False
        if self._wide:
            self._place([*formed], formed)
        if self._wide or not formed:
            return
        # A pass is captured for each order of kinds of draws: as few as there can be.
        rows = sorted(formed, key=lambda one: one.row(self._rules).kind)
        self.step.begin_rows([one.row(self._rules) for one in rows])
        self._formed = [*rows]
        for slot, one in enumerate(rows):
            one.sit(slot, 0)
        self._until = self.launched + min(one.most for one in rows)

    def _placed_anew(self) -> bool:
        """Whether who comes to a wide pass has a place, and who leaves has left it, without the others being asked."""
        coming = [one for one in self._open if not (one.placed or one.busy) and one.goes_on]
        places = self._places_with(coming) if self._wide else None
        if places is None:
            return False
        leaving = set(self._rows).difference(one for one in places if one is not None)
        for one in leaving:
            if one.only_wide:  # the next pass overwrites what it has still to see
                one.drain()
        try:
            self._place(places, coming, joins=max((one.unread for one in self._rows), default=0))
        except ModelError as error:
            if not coming:
                raise
            for one in coming:
                one.refused = error
            return self._placed_anew()
        for one in leaving:
            one.leave_place()
        return True

    def _places_with(self, coming: Sequence[_Ahead]) -> list[_Ahead | None] | None:
        """Of the next wide pass; `None` where its rows are better put together anew."""
        places = [one if one is not None and one.goes_on else None for one in self._formed]
        for one in coming:
            if None in places:
                places[places.index(None)] = one
            else:
                places.append(one)
        while places and places[-1] is None:
            places.pop()
        rows = len(places) - places.count(None)
        few = rows <= MAX_ROWS and not any(one is not None and one.only_wide for one in places)
        if few or len(places) > MOST_ROWS or filled_size(len(places)) > filled_size(rows):
            return None
        return places if rows == len(places) or self.step.wide.may_leave_places() else None

    def _place(self, places: list[_Ahead | None], coming: Sequence[_Ahead], *, joins: int = 0) -> None:
        begun = {places.index(one): one.row(self._rules) for one in coming}
        rows = [None if one is None else one.sequence for one in places]
        last = self.step.wide.put(rows, begun)
        for place, one in zip(begun, coming, strict=True):
            one.sit(place, last, joins=joins)
        self._formed, self._left = places, False
        self._until = self.launched + min(one.most for one in self._rows)

    def _launch(self) -> None:
        if self._wide:
            for one in self._rows:
                one.say_what_may_come()
            self.step.wide.launch()
        else:
            self.step.launch()
        self.launched += 1


class _Ahead:
    """The tokens of one of them. A `TokenSource`."""

    def __init__(self, together: BatchedRunAhead, state: GenerationState) -> None:
        self._together = together
        self.state = state
        self._masked = state.parts.rules.hold
        self.awaited = self._masked or bool(state.parts.request.alternatives)
        """Whether the host has to know something between two draws."""
        self._steered = is_steered(state.parts.request.sampling)
        self._went_on = False
        self._mask: Tensor | None = None
        self._closed = False
        self.slot: int | None = None
        """Of the passes; `None` where it is in none."""
        self._since = 0  # passes launched before those that it is in
        self._before = 0  # the number of the last report before its own
        self._read = 0  # reports of the passes that it is in
        self._end: int | None = None  # passes launched when it left its place, whose reports it still reads
        self.refused: ModelError | None = None
        """Why it finds no place in a pass that others go on in: its own turn fails of it, and not theirs."""
        self._kept: list[_Report] = []  # of passes before, that nobody has asked for yet
        self._joins = 0

    @property
    def path(self) -> DecodePath:
        return "synchronous" if self.awaited else "run-ahead"

    @property
    def busy(self) -> bool:
        return self.unread > 0

    @property
    def only_wide(self) -> bool:
        """Whether it needs a place in a wide pass, however few there are."""
        return self.awaited or self._steered

    @property
    def ready(self) -> bool:
        """Whether the next pass may have it, as far as the host is concerned."""
        return not self.awaited or (self._went_on and not self.busy)

    @property
    def placed(self) -> bool:
        """Whether the next pass has it, unless rows are put together anew."""
        return self.slot is not None and self._end is None

    @property
    def ring(self) -> TokenRing:
        assert self.slot is not None
        return self._together.ring(self.slot)

    @property
    def sequence(self) -> KVSequence:
        return self.state.parts.sequence

    @property
    def most(self) -> int:
        """How many tokens may still come of the passes."""
        return self.state.most - self.unread

    @property
    def has_room(self) -> bool:
        try:
            self.sequence.reserve(len(self.state.context) + self.unread)
        except PoolFullError:
            return False
        return True

    @property
    def goes_on(self) -> bool:
        """Whether another pass may have it."""
        return self.refused is None and self.ready and self.most > 0 and self.has_room

    @property
    def unread(self) -> int:
        """Its tokens that passes have drawn, or will."""
        return len(self._kept) + self._under_way

    @property
    def _under_way(self) -> int:
        """Passes that it is in and has not read."""
        launched = self._together.launched if self._end is None else self._end
        return 0 if self.slot is None else launched - self._since - self._read

    def sit(self, slot: int, before: int, *, joins: int = 0) -> None:
        """It is in the passes from the next one on, in which it reports one more than `before`.

        Args:
            joins: the others have so many passes before to read: until they have, it waits as many turns, or it would
                be the one that waits for the device in every step.
        """
        self.slot, self._since, self._before, self._read = slot, self._together.launched, before, 0
        self._end = None
        self._joins = joins

    def stands_by(self) -> bool:
        if self._joins > 0:
            self._joins -= 1
            return True
        # The others launch passes for all, or have soon read all that there is.
        return self.refused is None and not (self.busy or self._together.is_read())

    def drain(self) -> None:
        while self._under_way > 0:
            self._kept.append(self._report())
        if self._steered and self.placed and self.state.reason is None:
            assert self.slot is not None
            self.state.parts.sampler.steer(self._together.step.wide.mu(self.slot))
        self.slot = None

    def leave_place(self) -> None:
        """Of a wide pass, for another one, whose reports have other numbers."""
        self._end = self._together.launched

    def running(self) -> bool:
        return self._together.step.running()

    def check(self) -> None:
        self._together.step.check()

    def row(self, rules: DeviceRules) -> DecodeRow:
        return DecodeRow(self.sequence, self.state.context, rules.draws(self.state), self._masked)

    def follow(self, token: int) -> int:
        if self.refused is None and not self.busy:
            self._together.launch_next()
            self._joins = 0
        if self.refused is not None:
            raise self.refused
        report = self._kept.pop(0) if self._kept else self._report()
        self._went_on = False
        check_drawn(report.status)
        self.state.note(report.chances)
        self.sequence.extend((token,))
        return report.token

    def go_on(self) -> None:
        self._went_on = True
        self._mask = self.state.parts.rules.mask if self._masked else None
        if self.placed:
            self._together.launch_ahead(self)

    def say_what_may_come(self) -> None:
        """Before the next pass draws."""
        assert self.slot is not None
        if self._mask is not None:
            self._together.step.wide.set_mask(self.slot, self._mask)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            foresees = self._steered and self.state.reason is None
            if foresees or self._together.waits_to_leave(self):
                with suppress(ModelError):  # a device that has failed works for nobody
                    self.drain()
            if foresees:
                drawn = takewhile(lambda report: report.status == DRAWN, self._kept)
                self.state.foresee([report.token for report in drawn], None)
        finally:
            self.slot = None
            self._together.leave(self)

    def _report(self) -> _Report:
        token, status = wait_for(self, self._before + self._read + 1)
        told = None
        if (many := self.state.parts.request.alternatives) and status == DRAWN and self.slot is not None:
            # The next pass, which overwrites them, waits for this.
            (told,) = chances(self._together.step.wide.logits(self.slot)[None], [token], many)
        self._read += 1
        return _Report(token, status, told)


class _Report(NamedTuple):
    """Of a pass: the token, and its chances where they were asked for."""

    token: int
    status: int
    chances: PlaceChances | None
