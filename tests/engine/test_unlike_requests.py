"""Requests that have nothing in common but the model, in one loop: each gets what it would get alone."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from exlchat.engine import GenerationRequest, LocalEngine, SamplingSettings, load
from exlchat.engine.schedule.host_draws import BatchedHostDraws
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, Finished, TextDelta
from exlchat.llm.port import Failed
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts
from tests.endless_model import save_llama_without_end
from tests.engine.test_several import Passes, drawing

WARM = SamplingSettings(1.5, top_k=200, top_p=0.98)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama_without_end(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: Path) -> LocalEngine:
    return load(folder, device="cpu", kv_cache="fp32", max_seq_len=512, cache_tokens=256 * 24, prefill_chunk=16)


def unlike(engine: LocalEngine) -> list[GenerationRequest]:
    """Eight: other prompts, other draws, a grammar, stop strings, bans, thoughts, healing, chances."""
    thoughts = Thoughts(ThinkingMarks("<x>", "</x>", opened=True), tokens=5, closing_ids=tuple(engine.encode("</x>")))
    begun = list(range(80, 90))
    return [
        GenerationRequest(list(range(10, 50)), max_new_tokens=30),
        GenerationRequest(list(range(20, 31)), WARM, max_new_tokens=40, seed=1, alternatives=2),
        GenerationRequest(
            list(range(30, 60)), WARM, max_new_tokens=20, seed=2, constraint=Constraint("choice", "yes\nno")
        ),
        GenerationRequest(list(range(10, 45)), WARM, max_new_tokens=40, seed=3, stop=["e", "a"]),
        GenerationRequest(list(range(40, 45)), WARM, max_new_tokens=40, seed=4, banned=["a", "e"]),
        GenerationRequest(
            list(range(50, 90)),
            SamplingSettings(0.8, min_p=0.02, repetition_penalty=1.2, mirostat_tau=3.0),
            max_new_tokens=25,
            seed=5,
        ),
        GenerationRequest([*range(60, 70), *begun], WARM, max_new_tokens=15, seed=6, begun=10, heal=True),
        GenerationRequest(list(range(70, 100)), WARM, max_new_tokens=30, seed=7, thoughts=thoughts),
    ]


def said(last: Finished) -> tuple[object, ...]:
    return last.token_ids, last.text, last.reason, last.chances, last.healed


def alone(folder: Path, request: GenerationRequest) -> Finished:
    engine = load(folder, device="cpu", kv_cache="fp32", max_seq_len=512, cache_tokens=256 * 24, prefill_chunk=16)
    *_, last = engine.generate(request)
    assert isinstance(last, Finished)
    return last


class Listener:
    """What a sink was told."""

    def __init__(self) -> None:
        self.told: list[Event | Failed] = []
        self.done = threading.Event()

    def __call__(self, event: Event | Failed) -> None:
        assert not self.done.is_set()
        self.told.append(event)
        if isinstance(event, Finished | Failed):
            self.done.set()

    @property
    def tokens(self) -> int:
        return sum(len(event.token_ids) for event in self.told if isinstance(event, TextDelta))

    @property
    def last(self) -> Finished:
        last = self.told[-1]
        assert isinstance(last, Finished), last
        return last


def alone_in(engine: LocalEngine, request: GenerationRequest) -> Finished:
    *_, last = engine.generate(request)
    assert isinstance(last, Finished)
    return last


def by_turns(_: Scheduler) -> None:
    """As on a CPU."""


def in_one_pass(scheduler: Scheduler) -> None:
    """As on a card: a token of each goes through one pass, and the host draws."""
    passes = Passes(scheduler.runner.transformer)
    scheduler._sources._together = BatchedHostDraws(cast("Any", passes), cast("Any", None))
    cast("Any", scheduler._sources._together).draw = lambda logits, state: state.draw(logits)
    cast("Any", scheduler).passes = passes


def test_a_guided_answer_beside_another_is_drawn_by_who_knows_its_guide(engine: LocalEngine, folder: Path) -> None:
    """The device, which runs ahead for answers that it knows all about, does not know the other prompt."""
    guided = GenerationRequest(
        list(range(10, 30)),
        SamplingSettings(1.0, guidance_scale=2.0),
        max_new_tokens=20,
        seed=3,
        guidance_ids=[7, 8, 9],
    )
    requests = [guided, GenerationRequest(list(range(30, 50)), WARM, max_new_tokens=20, seed=4)]
    wanted = [alone(folder, request) for request in requests]
    scheduler, sinks = engine._parts.scheduler, [Listener() for _ in requests]
    in_one_pass(scheduler)
    with drawing(engine):
        for request, sink in zip(requests, sinks, strict=True):
            scheduler.add(request, sink)
        while scheduler.step():
            pass
    assert [said(sink.last) for sink in sinks] == [said(last) for last in wanted]


@pytest.mark.parametrize("way", [by_turns, in_one_pass])
def test_eight_unlike_requests_are_each_what_they_are_alone(
    engine: LocalEngine, folder: Path, way: Callable[[Scheduler], None]
) -> None:
    scheduler, requests = engine._parts.scheduler, unlike(engine)
    way(scheduler)
    wanted = [alone(folder, request) for request in requests]
    sinks = [Listener() for _ in requests]
    # The last one comes when the first have said something, and the second is cancelled in the middle.
    handles = [scheduler.add(request, sink) for request, sink in zip(requests[:-1], sinks, strict=False)]
    while sinks[1].tokens < 7:
        assert scheduler.step()
    handles[1].cancel()
    scheduler.add(requests[-1], sinks[-1])
    while scheduler.step():
        pass
    for index, (sink, last) in enumerate(zip(sinks, wanted, strict=True)):
        if index == 1:
            count = len(sink.last.token_ids)
            assert sink.last.reason == "cancelled"
            assert 7 <= count < 20
            assert sink.last.token_ids == last.token_ids[:count]
            assert sink.last.chances == last.chances[:count]
        else:
            assert said(sink.last) == said(last)
    if way is in_one_pass:
        assert max(cast("Any", scheduler).passes.sizes) >= 5
    assert not scheduler._going


def test_a_request_that_arrives_ends_no_other(engine: LocalEngine, folder: Path) -> None:
    requests = [dataclasses.replace(request, max_new_tokens=25) for request in unlike(engine)[:2]]
    first = engine.generate(requests[0])
    for event in first:
        if isinstance(event, TextDelta):
            break
    *_, second = engine.generate(requests[1])
    *_, last = first
    assert isinstance(last, Finished)
    assert isinstance(second, Finished)
    assert said(second) == said(alone(folder, requests[1]))
    assert said(last) == said(alone(folder, requests[0]))


def test_submitted_ones_run_beside_one_that_is_read(engine: LocalEngine, folder: Path) -> None:
    requests = unlike(engine)
    sinks = [Listener() for _ in requests[1:]]
    for request, sink in zip(requests[1:], sinks, strict=True):
        engine.submit(request, sink)
    *_, last = engine.generate(requests[0])
    assert isinstance(last, Finished)
    assert said(last) == said(alone(folder, requests[0]))
    for request, sink in zip(requests[1:], sinks, strict=True):
        assert sink.done.wait(60)
        assert said(sink.last) == said(alone(folder, request))


def test_unloading_ends_what_was_submitted(engine: LocalEngine) -> None:
    sinks = [Listener() for _ in range(3)]
    for sink in sinks:
        engine.submit(GenerationRequest(list(range(10, 40))), sink)
    engine.unload()
    assert [sink.last.reason for sink in sinks] == ["cancelled"] * 3


def test_who_waits_for_room_comes_when_there_is_some(folder: Path) -> None:
    """The pool holds one of them."""
    small = load(folder, device="cpu", kv_cache="fp32", max_seq_len=512, cache_tokens=512)
    requests = [dataclasses.replace(request, max_new_tokens=300, stop=()) for request in unlike(small)[:2]]
    sinks = [Listener(), Listener()]
    handles = [small._parts.scheduler.add(*each) for each in zip(requests, sinks, strict=True)]
    while sinks[0].tokens < 30:
        small._parts.scheduler.step()
    assert sinks[1].told == []
    handles[0].cancel()
    while small._parts.scheduler.step():
        pass
    assert sinks[0].last.reason == "cancelled"
    assert len(sinks[1].last.token_ids) == 300


def test_in_a_full_pool_who_came_last_stands_still(folder: Path) -> None:
    """Three pages for two answers that each take two; both say all that they would say alone."""
    small = load(folder, device="cpu", kv_cache="fp32", max_seq_len=512, cache_tokens=768)
    requests = [GenerationRequest(list(range(begin, begin + 30)), WARM, seed=begin) for begin in (10, 200)]
    wanted = [alone_in(small, request).token_ids for request in requests]
    sinks = [Listener(), Listener()]
    for request, sink in zip(requests, sinks, strict=True):
        small._parts.scheduler.add(request, sink)
    while small._parts.scheduler.step():
        pass
    for sink, ids in zip(sinks, wanted, strict=True):
        assert (sink.last.reason, len(sink.last.token_ids)) == ("context_full", 512 - 30)
        assert sink.last.token_ids == ids
