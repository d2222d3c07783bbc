"""The scheduler under random requests: arrivals, cancels, pauses, failures; each answer is what it is alone.

`make test` takes some hundred operations, `--long` twenty thousand.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exlchat.engine import GenerationRequest, LocalEngine, ModelError, SamplingSettings, load
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.engine.schedule.work import Work
from exlchat.llm.events import Event, Finished, Scored, TextDelta
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Failed, Handle
from exlchat.llm.request import Rank
from tests.random_models import edit_json, save_random_llama

FAILS = "fails"
WARM = SamplingSettings(temperature=1.0)
COMMON = [11 + 7 * place % 300 for place in range(600)]


@dataclass
class Asked:
    """A request, and what it was told."""

    request: GenerationRequest
    handle: Handle | None = None
    ids: list[int] = field(default_factory=list)
    ends: list[Finished | Failed] = field(default_factory=list)

    def told(self, event: Event | Scored | Failed) -> None:
        assert not self.ends, "told something behind its end"
        if isinstance(event, TextDelta):
            self.ids += event.token_ids
        elif isinstance(event, Finished | Failed):
            self.ends.append(event)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    save_random_llama(path, max_position_embeddings=1024, hidden_size=64, num_hidden_layers=1, intermediate_size=64)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is owned by `FAILS` draws four tokens and breaks."""
    draw = GenerationState.draw

    def broken(self: GenerationState, logits: object) -> int:
        if self.parts.request.owner == FAILS and self.count == 4:
            raise ModelError("broken")
        return draw(self, logits)  # type: ignore[arg-type]

    monkeypatch.setattr(GenerationState, "draw", broken)


def requests(chosen: random.Random) -> Iterator[GenerationRequest]:
    """Few prompts, of which many begin alike, so that they can be looked up alone."""
    prompts = [
        COMMON[: chosen.choice([40, 255, 256, 300, 520])] + [20 + number] * chosen.choice([0, 3, 200])
        for number in range(12)
    ]
    while True:
        yield GenerationRequest(
            chosen.choice(prompts),
            WARM,
            seed=chosen.randrange(3),
            max_new_tokens=chosen.choice([1, 5, 40, 150]),
            rank=chosen.choice(list(Rank)),
            owner=chosen.choice([""] * 9 + [FAILS]),
        )


class Alone:
    """What answers are where nothing else is asked for."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def ids(self, request: GenerationRequest) -> tuple[int, ...]:
        key = (tuple(request.prompt_ids), request.seed)
        if key not in self._known:
            longest = dataclasses.replace(request, max_new_tokens=150, owner="")
            *_, last = self._engine.generate(longest)
            assert isinstance(last, Finished)
            self._known[key] = last.token_ids
        return self._known[key][: request.max_new_tokens]


def check(scheduler: Scheduler) -> None:
    """Every page is in one place, and nobody waits for who may stand still for it."""
    # As the next step begins: a turn may have changed what may stand still.
    scheduler._admit()
    pool, going = scheduler._cache.pool, scheduler._going
    used = {page for work in going for page in work.sequence.pages}
    assert {page for page in pool.listed if page.users} <= used | _retired(scheduler)
    assert pool.room + len(used | _retired(scheduler)) == pool.size
    assert len(going) <= MOST_ANSWERS + 4
    for work in scheduler._coming:
        if not scheduler._admission.reads_for(work, going):
            low = [one for one in going if one.rank > work.rank and one.may_be_paused and not work.cancelled]
            assert not low


def _retired(scheduler: Scheduler) -> set[object]:
    close = scheduler._cache._close_retired
    return set(close.__self__.pages) if close is not None else set()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("seed", range(2))
def test_each_is_what_it_is_alone_and_nothing_is_left(folder: Path, pytestconfig: pytest.Config, seed: int) -> None:
    operations = 10_000 if pytestconfig.getoption("--long") else 400
    chosen = random.Random(seed)
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 7)
    alone = Alone(load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 64))
    scheduler, wanted = engine._parts.scheduler, requests(chosen)
    asked: list[Asked] = []
    paused = 0
    for _ in range(operations):
        open_ones = [one for one in asked if not one.ends]
        match chosen.choices(["ask", "cancel", "step"], [3 if len(open_ones) < 14 else 0, 0.5, 10])[0]:
            case "ask":
                one = Asked(next(wanted))
                one.handle = scheduler.add(one.request, one.told)
                asked.append(one)
            case "cancel" if open_ones:
                handle = chosen.choice(open_ones).handle
                assert handle is not None
                handle.cancel()
            case _:
                before = set(scheduler._going)
                scheduler.step()
                paused += len(before & set(scheduler._coming))
                check(scheduler)
    while scheduler.step():
        check(scheduler)
    assert paused > operations / 100
    for one in asked:
        (end,) = one.ends
        answer = alone.ids(one.request)
        if isinstance(end, Failed):
            assert one.request.owner == FAILS
            assert str(end.error) == "broken"
        elif end.reason == "cancelled":
            assert end.token_ids == tuple(one.ids) == answer[: len(one.ids)]
        else:
            assert one.request.owner != FAILS or len(answer) < 5
            assert end.token_ids == tuple(one.ids) == answer
    scheduler._cache.close_retired()
    assert scheduler._cache.pool.room == scheduler._cache.pool.size
    assert len(scheduler._cache._free) == len(scheduler._cache.tables.of(narrow=False))


def test_who_is_in_front_has_the_row_of_one_that_is_not(folder: Path) -> None:
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 40)
    scheduler = engine._parts.scheduler
    bulk = [
        Asked(GenerationRequest([*COMMON[:40], 20 + number], WARM, seed=1, max_new_tokens=60, rank=Rank.BULK))
        for number in range(12)
    ]
    for one in bulk:
        scheduler.add(one.request, one.told)
    for _ in range(40):
        scheduler.step()
    front = Asked(GenerationRequest(COMMON[:300], WARM, seed=1, max_new_tokens=30))
    scheduler.add(front.request, front.told)
    steps = 0
    while not front.ends:
        scheduler.step()
        steps += 1
    # Its prompt takes two slices, between which others have a pass; then each pass has a token of it.
    assert steps <= 30 + 6
    while scheduler.step():
        pass
    alone = Alone(engine)
    assert all(tuple(one.ids) == alone.ids(one.request)[:60] for one in bulk)


def test_who_comes_to_lower_ranks_does_not_wait_for_their_pass(folder: Path) -> None:
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 40, prefill_chunk=32)
    scheduler = engine._parts.scheduler
    bulk = [GenerationRequest(COMMON[start:], WARM, seed=1, max_new_tokens=60, rank=Rank.BULK) for start in (595, 100)]
    for one in bulk:
        scheduler.add(one, lambda _: None)
    while not scheduler._read_last or scheduler._passes < 2:
        assert scheduler.step()
    front = scheduler.add(GenerationRequest(COMMON[:20], WARM, max_new_tokens=2), lambda _: None)
    passes = scheduler._passes
    scheduler.step()
    assert isinstance(front, Work)
    assert front.computed == 20
    assert scheduler._passes == passes
    # From then on they take turns again.
    scheduler.step()
    assert scheduler._passes == passes + 1
    engine.unload()


def test_a_token_is_told_before_the_step_ends_that_made_it(folder: Path) -> None:
    """In which others wait for the device; what reads it is a thread of its own."""
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 40)
    seen, in_time = threading.Event(), list[bool]()

    def told(event: Event | Scored | Failed) -> None:
        going = engine._parts.scheduler._going
        if isinstance(event, TextDelta) and any(work.rank == Rank.CHAT and work.state for work in going):
            in_time.append(seen.wait(30))

    bulk = GenerationRequest(COMMON[:40], WARM, seed=1, max_new_tokens=1000, min_new_tokens=1000, rank=Rank.BULK)
    handle = engine.submit(bulk, told)
    for event in engine.generate(GenerationRequest(COMMON[:20], WARM, seed=1, max_new_tokens=2)):
        if isinstance(event, TextDelta):
            seen.set()
    handle.cancel()
    assert in_time
    assert all(in_time)
    engine.unload()


def test_whoever_submits_does_not_wait_for_the_step_under_way(folder: Path) -> None:
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 40)
    submitted, in_time, ended = threading.Event(), list[bool](), threading.Semaphore(0)

    def count(event: Event | Scored | Failed) -> None:
        if isinstance(event, Finished):
            ended.release()

    def submit() -> None:
        engine.submit(GenerationRequest(COMMON[:30], WARM, seed=1, max_new_tokens=2), count)
        submitted.set()

    def told(event: Event | Scored | Failed) -> None:
        if isinstance(event, TextDelta) and not in_time:
            # In a step.
            thread = threading.Thread(target=submit)
            thread.start()
            in_time.append(submitted.wait(30))
        count(event)

    engine.submit(GenerationRequest(COMMON[:20], WARM, seed=1, max_new_tokens=4), told)
    assert ended.acquire(timeout=60)
    assert ended.acquire(timeout=60)
    assert in_time == [True]
    engine.unload()


def test_what_several_begin_with_is_read_once(folder: Path) -> None:
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1024, cache_tokens=256 * 40)
    scheduler = engine._parts.scheduler
    asked = [
        Asked(GenerationRequest([*COMMON[:520], 20 + number, 21], WARM, seed=number, max_new_tokens=5))
        for number in range(20)
    ]
    works: list[Work] = []
    for one in asked:
        handle = scheduler.add(one.request, one.told)
        assert isinstance(handle, Work)
        works.append(handle)
    while scheduler.step():
        pass
    assert all(one.ends for one in asked)
    # Of the others what stands behind the last whole page that all begin with, at most.
    assert sum(work.computed for work in works) <= 522 + 19 * 10
