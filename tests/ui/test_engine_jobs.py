"""The engine's threads: jobs side by side, stops that are felt, errors in one line, an end that comes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from exlchat.app.runtime.engine_jobs import EngineJobs
from exlchat.app.runtime.jobs import (
    Answered,
    EngineJob,
    JobEnded,
    JobEvent,
    Load,
    LoadBegun,
    Loaded,
    LoadFailed,
    Loading,
    Question,
    Report,
)
from exlchat.llm.events import TextDelta
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Cancellation, Capabilities, Engine
from exlchat.llm.request import GenerationRequest
from tests.ui.scripted_engine import ScriptedEngine

OnProgress = Callable[[LoadProgress], None]


class Receiver:
    """Reports as they come in."""

    def __init__(self) -> None:
        self.reports: queue.Queue[Report] = queue.Queue()

    def until(self, kind: type[Report]) -> list[Report]:
        """All reports up to and with the next of a kind."""
        seen: list[Report] = []
        while not (seen and isinstance(seen[-1], kind)):
            seen.append(self.reports.get(timeout=60))
        return seen


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def started(receiver: Receiver, load: Callable[[OnProgress], Engine]) -> EngineJobs:
    thread = EngineJobs(load, receiver.reports.put)
    thread.start()
    return thread


def talk(engine: Engine, cancellation: Cancellation) -> Iterator[TextDelta]:
    with cancellation.over(engine.generate(GenerationRequest([65]))) as events:
        yield from (event for event in events if isinstance(event, TextDelta))


def said(reports: list[Report]) -> str:
    return "".join(r.event.text for r in reports if isinstance(r, JobEvent) and isinstance(r.event, TextDelta))


def test_it_loads_with_progress_and_then_does_what_waited(receiver: Receiver) -> None:
    def load(on_progress: OnProgress) -> Engine:
        on_progress(LoadProgress(1, 2, "reading weights"))
        return ScriptedEngine("first")

    thread = EngineJobs(load, receiver.reports.put)
    job = EngineJob("a", talk)
    thread.submit(job)
    thread.start()
    assert receiver.until(Loaded)[:-1] == [Loading(LoadProgress(1, 2, "reading weights"))]
    reports = receiver.until(JobEnded)
    assert (said(reports), reports[-1]) == ("first", JobEnded(job, None))
    assert thread.close(5)


def test_jobs_run_side_by_side(receiver: Receiver) -> None:
    both = threading.Barrier(2)

    def work(_: Engine, __: Cancellation) -> Iterator[TextDelta]:
        yield TextDelta("x")
        both.wait(60)
        yield TextDelta("y")

    thread = started(receiver, lambda _: ScriptedEngine())
    thread.submit(EngineJob("a", work))
    thread.submit(EngineJob("b", work))
    reports = [*receiver.until(JobEnded), *receiver.until(JobEnded)]
    assert [one.error for one in reports if isinstance(one, JobEnded)] == [None, None]
    assert thread.close(5)


def test_a_question_waits_for_the_answer_of_its_conversation_and_for_no_other(receiver: Receiver) -> None:
    engine = ScriptedEngine("an answer")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    thread.submit(EngineJob("a", talk))
    about_a = Question(lambda _: "a", print, conversation_id="a")
    about_b = Question(lambda _: "b", print, conversation_id="b")
    about_none = Question(lambda _: "none", print)
    for question in (about_a, about_b, about_none):
        thread.ask(question)
    before = [one for one in (*receiver.until(Answered), *receiver.until(Answered)) if isinstance(one, Answered)]
    assert {one.answer for one in before} == {"b", "none"}
    engine.release()
    assert isinstance(receiver.until(JobEnded)[-1], JobEnded)
    assert receiver.until(Answered)[-1] == Answered(about_a, "a", None)
    assert thread.close(5)


def test_another_model_waits_for_all_that_was_asked_before_and_has_what_is_asked_behind_it(receiver: Receiver) -> None:
    engine, other = ScriptedEngine("one", "two"), ScriptedEngine("three", name="other")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    first, second, third = EngineJob("a", talk), EngineJob("b", talk), EngineJob("c", talk)
    thread.submit(first)
    thread.submit(second)
    receiver.until(Loaded)
    thread.load(Load("other", lambda _: other))
    thread.submit(third)
    engine.step(1)
    assert not any(isinstance(one, LoadBegun) for one in receiver.until(JobEvent))
    engine.release()
    reports = receiver.until(Loaded)
    assert {one.job for one in reports if isinstance(one, JobEnded)} == {first, second}
    reports = receiver.until(JobEnded)
    assert (said(reports), reports[-1]) == ("three", JobEnded(third, None))
    assert engine.unloaded
    assert thread.close(5)


def test_stop_ends_the_running_job_and_the_next_goes_on(receiver: Receiver) -> None:
    engine = ScriptedEngine("a long answer", "next")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    job = EngineJob("a", talk)
    thread.submit(job)
    engine.step(3)
    receiver.until(Loaded)
    seen = [receiver.reports.get(timeout=60) for _ in range(3)]
    thread.stop(job)
    seen += receiver.until(JobEnded)
    assert said(seen) == "a l"
    engine.release()
    thread.submit(EngineJob("a", talk))
    assert said(receiver.until(JobEnded)) == "next"
    assert thread.close(5)


def test_a_stop_before_the_engine_generates_is_not_forgotten(receiver: Receiver) -> None:
    engine = ScriptedEngine("never more than a bit of this")
    prepared, go_on = threading.Event(), threading.Event()

    def work(port: Engine, cancellation: Cancellation) -> Iterator[TextDelta]:
        prepared.set()
        go_on.wait(10)
        yield from talk(port, cancellation)

    thread = started(receiver, lambda _: engine)
    job = EngineJob("a", work)
    thread.submit(job)
    assert prepared.wait(10)
    thread.stop(job)
    go_on.set()
    assert said(receiver.until(JobEnded)) == ""
    assert thread.close(5)


def test_stopping_a_job_that_waits_takes_it_out(receiver: Receiver) -> None:
    loads = threading.Event()

    def load(_: OnProgress) -> Engine:
        loads.wait(60)
        return ScriptedEngine("one")

    thread = started(receiver, load)
    kept, stopped = EngineJob("a", talk), EngineJob("b", talk)
    thread.submit(kept)
    thread.submit(stopped)
    thread.stop(stopped)
    assert receiver.until(JobEnded)[-1] == JobEnded(stopped, None)
    loads.set()
    reports = receiver.until(JobEnded)
    assert (said(reports), reports[-1]) == ("one", JobEnded(kept, None))
    assert thread.close(5)


def test_a_failing_job_is_explained_and_the_next_runs(receiver: Receiver) -> None:
    engine = ScriptedEngine("abcdef", "fine")
    engine.fail_after = 2
    thread = started(receiver, lambda _: engine)
    thread.submit(EngineJob("a", talk))
    ended = receiver.until(JobEnded)
    assert said(ended) == "ab"
    assert isinstance(ended[-1], JobEnded)
    assert ended[-1].error == "RuntimeError: the script says: fail"
    engine.fail_after = None
    thread.submit(EngineJob("a", talk))
    assert said(receiver.until(JobEnded)) == "fine"
    assert thread.close(5)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ModelError("model.safetensors: truncated; download it again"),
            "model.safetensors: truncated; download it again",
        ),
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_model_that_does_not_load_fails_jobs_with_the_reason(receiver: Receiver, error: Exception, line: str) -> None:
    def load(_: OnProgress) -> Engine:
        raise error

    thread = started(receiver, load)
    assert receiver.until(LoadFailed)[-1] == LoadFailed(line)
    job = EngineJob("a", talk)
    thread.submit(job)
    assert receiver.until(JobEnded)[-1] == JobEnded(job, line)
    assert thread.close(5)


def test_close_stops_the_running_job_and_keeps_its_end(receiver: Receiver) -> None:
    engine = ScriptedEngine("a long answer")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    job = EngineJob("a", talk)
    thread.submit(job)
    receiver.until(Loaded)
    engine.step(1)
    receiver.until(JobEvent)
    assert thread.close(5)
    assert receiver.until(JobEnded)[-1] == JobEnded(job, None)


def test_close_does_not_wait_for_a_load_that_reports_progress(receiver: Receiver) -> None:
    def load(on_progress: OnProgress) -> Engine:
        for step in range(1000):
            time.sleep(0.01)
            on_progress(LoadProgress(step, 1000, "reading weights"))
        return ScriptedEngine()

    thread = started(receiver, load)
    receiver.until(Loading)
    assert thread.close(2)


def test_close_gives_up_on_a_load_that_is_stuck(receiver: Receiver) -> None:
    stuck = threading.Event()

    def load(_: OnProgress) -> Engine:
        stuck.wait(30)
        return ScriptedEngine()

    thread = started(receiver, load)
    assert not thread.close(0.1)
    stuck.set()


def test_close_before_start_is_harmless(receiver: Receiver) -> None:
    assert EngineJobs(lambda _: ScriptedEngine(), receiver.reports.put).close(1)


@pytest.mark.parametrize("ranks", [True, False])
def test_an_idle_job_gives_way_where_the_engine_has_no_ranks(receiver: Receiver, ranks: bool) -> None:
    class Ranked(ScriptedEngine):
        capabilities = Capabilities(ranks=ranks)

    engine = Ranked("a long title", "answer", "ok")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    idle, real = EngineJob("c", talk, idle=True), EngineJob("d", talk)
    thread.submit(idle)
    engine.step(1)
    receiver.until(JobEvent)
    thread.submit(real)
    engine.release()
    reports = [*receiver.until(JobEnded), *receiver.until(JobEnded)]
    titled = "".join(
        one.event.text
        for one in reports
        if isinstance(one, JobEvent) and one.job is idle and isinstance(one.event, TextDelta)
    )
    assert (titled == " long title") == ranks
    assert thread.close(5)


def test_idle_jobs_give_way_to_another_model(receiver: Receiver) -> None:
    engine = ScriptedEngine("a long title")
    engine.hold()
    thread = started(receiver, lambda _: engine)
    receiver.until(Loaded)
    idle, waiting = EngineJob("c", talk, idle=True), EngineJob("d", talk, idle=True)
    thread.submit(idle)
    thread.submit(waiting)
    engine.step(1)
    receiver.until(JobEvent)
    thread.load(Load("other", lambda _: ScriptedEngine(name="other")))
    reports = receiver.until(Loaded)
    assert {one.job for one in reports if isinstance(one, JobEnded)} == {idle, waiting}
    assert thread.close(5)
