"""More answers than a step takes rows, whose rows keep their places: each is what it would be alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, load
from exlchat.engine.decode.draws import DecodeRow
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.sampling.distribution import Moment, distribution, drawn, next_surprise
from exlchat.engine.schedule.batch import BatchedRunAhead
from exlchat.engine.schedule.work import Work
from exlchat.ext.functions import CDraw
from exlchat.ext.philox import uniform_bits
from exlchat.ext.sampling import TokenRing
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import TextDelta
from exlchat.llm.info import ModelError
from exlchat.llm.port import Failed, Handle
from exlchat.llm.request import Rank
from exlchat.llm.sampling import SamplingSettings
from tests.engine.test_several import PROMPT, WARM, Drawing, alone, probabilities
from tests.random_models import edit_json, save_random_llama

MOST = 40
STEERED = SamplingSettings(1.2, mirostat_tau=3.0, mirostat_eta=0.2)


class WideDrawing(Drawing):
    """Wide passes of `DecodeGraphs`, too."""

    def __init__(self, engine: LocalEngine, *, may_leave: bool = True) -> None:
        super().__init__(engine._parts.transformer, WARM)
        self._places = [TokenRing(pinned=False) for _ in range(MOST)]
        self._may_leave = may_leave
        self.wide = SimpleNamespace(
            most=MOST,
            may_leave_places=lambda: may_leave,
            put=self.put_rows,
            launch=self.launch_wide,
            ring=self._places.__getitem__,
            set_mask=self.set_place_mask,
            logits=lambda place: self._logits[place],
            mu=lambda place: self._steered[place].mu,
        )
        self._passes = 0
        self.kept: list[int] = []
        """Rows that went on where they were each time that rows were put."""
        self._at: dict[int, tuple[DecodeRow, list[int]]] = {}
        self._masks: dict[int, torch.Tensor] = {}
        self._steered: dict[int, CDraw] = {}
        self._logits: dict[int, torch.Tensor] = {}

    def put_rows(self, rows: Sequence[KVSequence | None], begun: Mapping[int, DecodeRow]) -> int:
        assert self._may_leave or None not in rows
        for place, row in begun.items():
            self._steered[place] = row.draws.c_draw()
            self._at[place] = row, [row.context[-1], len(row.context) - 1, row.draws.index]
        self._at = {place: at for place, at in self._at.items() if place < len(rows) and rows[place] is not None}
        assert [self._at[place][0].sequence if place in self._at else None for place in range(len(rows))] == list(rows)
        self.kept.append(len(self._at) - len(begun))
        return self._passes

    def launch_wide(self) -> None:
        self._passes += 1
        self.sizes.append(len(self._at))
        for place, (row, at) in self._at.items():
            token, position, index = at
            drawn = self._drawn(place, row, token, position, index)
            self._places[place].words[self._passes % 64] = self._passes << 32 | drawn
            at[:] = drawn, position + 1, index + 1

    def set_place_mask(self, place: int, words: torch.Tensor) -> None:
        assert self._at[place][0].masked
        self._masks[place] = words

    def _drawn(self, place: int, row: DecodeRow, token: int, position: int, index: int) -> int:
        assert position < row.sequence.capacity
        logits = self._transformer.forward(torch.tensor([token]), row.sequence, start=position)[0]
        self._logits[place] = logits
        if row.masked:
            # What was said before the last pass does not hold for this one.
            words = self._masks.pop(place)
            ids = torch.arange(len(logits))
            logits = logits.masked_fill((words[ids // 32] >> ids % 32 & 1) == 0, float("-inf"))
        uniform = uniform_bits(row.draws.seed, index, attempt=row.draws.attempt) / 2**53
        settings = row.draws.settings
        if "mirostat" in settings.steps:
            state = self._steered[place]
            found = distribution(logits.double(), settings, settings.steps, Moment(state.mu, 1.0, None))
            assert found.steered is not None
            token = drawn(found.left, uniform)
            p = float(found.steered.p[found.steered.ids == token])
            state.mu = next_surprise(state.mu, p, settings.mirostat_tau, settings.mirostat_eta)
            return token
        cumulative = probabilities(logits, WARM).cumsum(0)
        return int(torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return load(path, device="cpu", kv_cache="fp16", max_seq_len=512, cache_tokens=256 * 120)


@pytest.fixture(params=[True, False], ids=["empty places", "no page for empty places"])
def step(engine: LocalEngine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> WideDrawing:
    made, scheduler = WideDrawing(engine, may_leave=request.param), engine._parts.scheduler
    ahead = BatchedRunAhead(cast("DecodeGraphs", made), DeviceRules(scheduler._plans.vocabulary))
    monkeypatch.setattr(scheduler._sources, "_ahead", ahead)
    monkeypatch.setattr(scheduler._admission, "_most", lambda: MOST)
    return made


class Asked:
    """A request whose events are kept."""

    def __init__(self, engine: LocalEngine, request: GenerationRequest) -> None:
        self.request, self.tokens = request, 0
        self.end: Finished | Failed | None = None
        self.handle: Handle = engine._parts.scheduler.add(request, self._take)

    def _take(self, event: object) -> None:
        if isinstance(event, TextDelta):
            self.tokens += len(event.token_ids)
        elif isinstance(event, Finished | Failed):
            self.end = event

    def check(self, engine: LocalEngine) -> None:
        assert isinstance(self.end, Finished), self.end
        assert self.request.seed is not None
        wanted = alone(engine, self.request, self.request.seed)
        assert self.end.token_ids == wanted.token_ids[: len(self.end.token_ids)]
        if self.end.reason != "cancelled":
            assert self.end.reason == wanted.reason
            assert len(self.end.token_ids) == len(wanted.token_ids)


def requests(count: int, **change: Any) -> list[GenerationRequest]:
    return [
        GenerationRequest(PROMPT[: 20 + 11 * seed], WARM, max_new_tokens=10 + 5 * (seed % 7), seed=seed, **change)
        for seed in range(count)
    ]


def run(engine: LocalEngine, limit: int = 2000) -> None:
    for _ in range(limit):
        if not engine._parts.scheduler.step():
            return
    raise AssertionError("it never ends")


def check_all(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, asked: Sequence[Asked]) -> None:
    """Each is what it is alone, without the stand-ins."""
    monkeypatch.undo()
    for one in asked:
        one.check(engine)


@pytest.mark.parametrize(
    "change", [{}, {"banned": ["a", "e", "ti"]}, {"stop": ["ti", "or"]}], ids=["plain", "banned", "stop"]
)
def test_each_of_many_is_what_it_would_be_alone(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    asked = [Asked(engine, one) for one in requests(20, **change)]
    run(engine)
    assert max(step.sizes) > 8
    assert engine._parts.scheduler._sources._ahead is not None
    assert engine._parts.scheduler._sources._ahead._formed == engine._parts.scheduler._sources._ahead._open == []
    check_all(engine, monkeypatch, asked)


SHAPE = Constraint("regex", "[a-z]{2,9}( [a-z]{2,9}){2,9}[.]")


def test_masks_and_chances_do_not_stop_the_others(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [replace(one, max_new_tokens=60) for one in requests(18)]
    for at in (1, 6, 13):
        wanted[at] = replace(wanted[at], constraint=SHAPE)
    for at in (2, 6, 9):
        wanted[at] = replace(wanted[at], alternatives=3)
    asked = [Asked(engine, one) for one in wanted]
    scheduler, gained = engine._parts.scheduler, 0
    while any(work.reading for work in (*scheduler._coming, *scheduler._going)):
        scheduler.step()
    while len(scheduler._going) > 8:
        assert scheduler._sources._way == "ahead"
        before = {work: work.state.count for work in scheduler._going if work.state is not None}
        scheduler.step()
        going = [
            one.state.count - before[one]
            for one in scheduler._going
            if one.state is not None and one in before and one.state.reason is None
        ]
        assert set(going) <= {0, 1}
        # Each says something in every turn, but for the one in which it ends.
        assert 0 not in going or not step._may_leave
        gained += sum(going)
    assert gained > 100
    run(engine)
    check_all(engine, monkeypatch, asked)
    for one in asked:
        assert isinstance(one.end, Finished)
        for found, told in zip(one.end.chances, alone(engine, one.request, one.request.seed or 0).chances, strict=True):
            assert [chance.token_id for chance in found.top] == [chance.token_id for chance in told.top]
            assert found.taken.rank == told.taken.rank
            assert found.taken.log_probability == pytest.approx(told.taken.log_probability, abs=1e-3)
        assert len(one.end.chances) == (len(one.end.token_ids) if one.request.alternatives else 0)


def test_mirostat_goes_on_where_the_device_was(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops nobody; some stand still in between, and the last few are drawn on the host again."""
    wanted = [replace(one, max_new_tokens=40 if number < 12 else 80) for number, one in enumerate(requests(17))]
    for at in (2, 6, 13, 16):
        wanted[at] = replace(wanted[at], sampling=STEERED)
    asked = [Asked(engine, one) for one in wanted]
    scheduler = engine._parts.scheduler
    while any(work.reading for work in (*scheduler._coming, *scheduler._going)):
        scheduler.step()
    turn = 0
    while len(scheduler._going) > 12:
        assert scheduler._sources._way == "ahead"
        for at in (6, 13):
            work = cast("Work", asked[at].handle)
            if turn % 11 == 4:
                work.rest()
            elif turn % 11 == 7:
                work.go_on()
            elif turn == 20 and not work.ended:
                scheduler._pause(work)
        scheduler.step()
        turn += 1
    assert max(step.sizes) > 8
    for at in (6, 13):
        cast("Work", asked[at].handle).go_on()
    run(engine)
    assert scheduler._sources._way != "ahead"
    check_all(engine, monkeypatch, asked)


def test_an_answer_that_takes_on_a_form_in_the_middle(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [replace(one, max_new_tokens=30) for one in requests(12)]
    first = alone(engine, wanted[3], 3)
    # From a text on that it says by itself.
    begin = engine.decode(first.token_ids[:8])[-4:]
    wanted[3] = replace(wanted[3], constraint=SHAPE, constraint_from=begin)
    asked = [Asked(engine, one) for one in wanted]
    run(engine)
    check_all(engine, monkeypatch, asked)


def test_who_comes_and_who_is_cancelled_leaves_the_others_where_they_are(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = iter(requests(34))
    asked = [Asked(engine, next(wanted)) for _ in range(14)]
    for turn in range(200):
        engine._parts.scheduler.step()
        if turn % 4 == 3 and (one := next(wanted, None)) is not None:
            asked.append(Asked(engine, one))
        if turn in (40, 55):
            going = (one for one in asked if one.end is None)
            next(one for one in going if 3 < one.tokens < (one.request.max_new_tokens or 0) - 3).handle.cancel()
    run(engine)
    ahead = [one for one in asked if isinstance(one.end, Finished) and one.end.reason == "cancelled"]
    assert len(ahead) == 2
    if step._may_leave:
        # Most of the time somebody came or left, and the others went on.
        assert sum(kept > 0 for kept in step.kept) > len(step.kept) / 2
    check_all(engine, monkeypatch, asked)


def test_those_who_go_on_together_share_the_next_pass(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = engine._parts.scheduler
    asked = [Asked(engine, replace(one, max_new_tokens=110)) for one in requests(34)]
    while any(work.reading for work in (*scheduler._coming, *scheduler._going)):
        scheduler.step()
    for turn in range(60):
        scheduler.step()
        for one in asked[10:]:
            if turn % 9 == 2:
                cast("Work", one.handle).rest()
            elif turn % 9 == 6:
                cast("Work", one.handle).go_on()
        assert scheduler._sources._ahead is not None
        assert max((one.unread for one in scheduler._sources._ahead._open), default=0) <= 4
    for one in asked:
        cast("Work", one.handle).go_on()
    run(engine)
    check_all(engine, monkeypatch, asked)


def test_who_finds_no_memory_beside_others_fails_alone(
    engine: LocalEngine, step: WideDrawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Asked(engine, replace(one, max_new_tokens=90)) for one in requests(20)]
    for _ in range(60):
        engine._parts.scheduler.step()
    late = Asked(engine, GenerationRequest(PROMPT[:30], WARM, max_new_tokens=20, seed=77))

    def put(rows: Sequence[KVSequence | None], begun: Mapping[int, DecodeRow]) -> int:
        if any(row.draws.seed == 77 for row in begun.values()):
            raise ModelError("no memory for it")
        return step.put_rows(rows, begun)

    step.wide.put = put
    while late.end is None:
        engine._parts.scheduler.step()
    assert any(one.end is None for one in asked)
    run(engine)
    monkeypatch.undo()
    assert isinstance(late.end, Failed)
    assert str(late.end.error) == "no memory for it"
    for one in asked:
        one.check(engine)


def test_where_all_that_come_find_no_memory_each_is_told_so(engine: LocalEngine, step: WideDrawing) -> None:
    def put(rows: Sequence[KVSequence | None], begun: Mapping[int, DecodeRow]) -> int:
        raise ModelError("no memory for them")

    step.wide.put = put
    asked = [Asked(engine, replace(one, max_new_tokens=30)) for one in requests(12)]
    run(engine)
    for one in asked:
        # Up to eight go by the step, which takes no memory.
        assert isinstance(one.end, Finished) or str(cast("Failed", one.end).error) == "no memory for them"
    assert sum(isinstance(one.end, Failed) for one in asked) >= 4


class Late:
    """A device that does nothing before somebody looks, and then one thing at a time; every row says the same token."""

    def __init__(self) -> None:
        self._under_way: list[Callable[[], None]] = []
        self._places = [TokenRing(pinned=False) for _ in range(MOST)]
        self._rows = [TokenRing(pinned=False) for _ in range(8)]
        self._at: dict[int, int] = {}
        self._step: list[int] = []
        self._looks = self._passes = 0
        self.kept = 0
        self.wide = SimpleNamespace(
            most=MOST,
            may_leave_places=lambda: True,
            put=self.put_rows,
            launch=self.launch_wide,
            ring=lambda place: SimpleNamespace(read=partial(self._read, self._places[place])),
        )

    def put_rows(self, rows: Sequence[KVSequence | None], begun: Mapping[int, DecodeRow]) -> int:
        there, begins = {place for place, row in enumerate(rows) if row is not None}, dict.fromkeys(begun, self._passes)
        self.kept += len(there) - len(begun)

        def put() -> None:
            self._at = {place: number for place, number in (self._at | begins).items() if place in there}
            assert set(self._at) == there

        self._under_way.append(put)
        return self._passes

    def launch_wide(self) -> None:
        def draw() -> None:
            for place in self._at:
                number = self._at[place] = self._at[place] + 1
                self._places[place].words[number % 64] = number << 32 | 7

        self._under_way.append(draw)
        self._passes += 1

    def begin_rows(self, rows: Sequence[DecodeRow]) -> None:
        for ring in self._rows:
            ring.clear()
        self._under_way.append(lambda: setattr(self, "_step", [0] * len(rows)))

    def launch(self) -> None:
        def draw() -> None:
            self._step = [number + 1 for number in self._step]
            for ring, number in zip(self._rows, self._step, strict=False):
                ring.words[number % 64] = number << 32 | 7

        self._under_way.append(draw)

    def row_ring(self, row: int) -> SimpleNamespace:
        return SimpleNamespace(read=partial(self._read, self._rows[row]))

    def check(self) -> None:
        """No card fails here."""

    def running(self) -> bool:
        return bool(self._under_way)

    def _read(self, ring: TokenRing, number: int) -> tuple[int, int] | None:
        found = ring.read(number)
        self._looks += found is None
        if found is None and self._looks % 2 and self._under_way:
            self._under_way.pop(0)()
        return found


@pytest.fixture
def late(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> Late:
    made, scheduler = Late(), engine._parts.scheduler
    for layer in range(engine._parts.transformer.spec.num_layers):
        # It stores nothing, and what is found there afterwards has to be numbers.
        pages = engine._parts.cache.layer(layer)
        pages.keys.zero_(), pages.values.zero_()
    ahead = BatchedRunAhead(cast("DecodeGraphs", made), DeviceRules(scheduler._plans.vocabulary))
    monkeypatch.setattr(scheduler._sources, "_ahead", ahead)
    monkeypatch.setattr(scheduler._admission, "_most", lambda: MOST)
    return made


@pytest.mark.parametrize("number", [0, 6, 11])
def test_who_has_joined_reads_each_pass_in_the_step_in_which_the_others_do(
    engine: LocalEngine, late: Late, number: int
) -> None:
    """One that is a pass behind is told its tokens by that later, however early its turn is."""
    scheduler, ahead = engine._parts.scheduler, engine._parts.scheduler._sources._ahead
    assert ahead is not None
    asked = [
        Asked(engine, GenerationRequest([7, number], WARM, max_new_tokens=60, min_new_tokens=60, rank=Rank.BULK))
        for number in range(12)
    ]
    while min(one.tokens for one in asked) < 10:
        scheduler.step()
    again = asked[number]
    cast("Work", again.handle).rest()
    for _ in range(3):
        scheduler.step()
    cast("Work", again.handle).go_on()
    before = again.tokens
    while again.tokens < before + 3:
        scheduler.step()
    before = again.tokens
    for step in range(20):
        assert {one.unread for one in ahead._rows} == {2}
        assert again.tokens == before + step
        scheduler.step()
    run(engine)
    assert late.kept > 0


@pytest.mark.parametrize("seed", range(3))
def test_no_report_is_lost_where_the_device_lags(engine: LocalEngine, late: Late, seed: int) -> None:
    """Answers of unlike lengths, each followed by another, beside chats that go first and some that are cancelled."""
    scheduler, ahead, choice = engine._parts.scheduler, engine._parts.scheduler._sources._ahead, random.Random(seed)
    assert ahead is not None
    asked: list[Asked] = []

    def ask(rank: Rank = Rank.BULK, tokens: int = 0) -> None:
        prompt = choice.choices(range(300), k=choice.randint(2, 60))
        many = tokens or choice.choice((40, 40, 40, 25, 3))
        asked.append(
            Asked(engine, GenerationRequest(prompt, WARM, max_new_tokens=many, min_new_tokens=many, rank=rank))
        )

    for _ in range(24):
        ask()
    for turn in range(4000):
        if turn % 150 == 80 and turn < 500:
            ask(Rank.CHAT, 100)
        if turn % 37 == 5:
            choice.choice(asked[-20:]).handle.cancel()
        for _ in range(min(24 - sum(one.end is None for one in asked), 100 - len(asked))):
            ask()
        if not scheduler.step():
            break
        # Nobody's reports are written over before they are read.
        assert max((one.unread for one in ahead._open), default=0) <= 4
    assert all(isinstance(one.end, Finished) for one in asked), [
        one.end for one in asked if isinstance(one.end, Failed)
    ]
    assert late.kept > 500
