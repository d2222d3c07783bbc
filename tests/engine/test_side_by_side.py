"""Answers that several threads read at once, as the conversations of the app do: whoever steps, steps for all."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import pytest

from exlchat.engine import GenerationRequest, LocalEngine, SamplingSettings, load
from exlchat.llm.events import Finished, OneOfSeveral, Scored, TextDelta
from exlchat.llm.port import Failed
from exlchat.llm.request import Rank, ScoreRequest
from tests.endless_model import save_llama_without_end
from tests.patience import PATIENCE

WARM = SamplingSettings(1.5, top_k=200, top_p=0.98)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama_without_end(tmp_path_factory.mktemp("model"))


def loaded(folder: Path) -> LocalEngine:
    return load(folder, device="cpu", kv_cache="fp32", max_seq_len=512, cache_tokens=256 * 12, prefill_chunk=16)


def asked(number: int) -> GenerationRequest:
    return GenerationRequest(
        list(range(10 + number, 10 + number + 5 * (number % 7 + 1))),
        WARM if number % 3 else SamplingSettings(temperature=0.0),
        max_new_tokens=10 + number % 20,
        seed=number,
        rank=list(Rank)[number % 4],
    )


class Reader(threading.Thread):
    """Reads answers one after the other: alone, several of a prompt, scores, and some that it lets go of."""

    def __init__(self, engine: LocalEngine, seed: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._random = engine, random.Random(seed)
        self.answers: dict[int, tuple[int, ...]] = {}
        self.failed: list[BaseException] = []

    def run(self) -> None:
        try:
            for _ in range(12):
                self._one(self._random.randrange(30))
        except BaseException as error:
            self.failed.append(error)

    def _one(self, number: int) -> None:
        engine, request = self._engine, asked(number)
        match self._random.choice(["all", "all", "several", "left", "cancelled", "score"]):
            case "all":
                *_, last = engine.generate(request)
                assert isinstance(last, Finished)
                self.answers[number] = last.token_ids
            case "several":
                ended = [
                    event.event
                    for event in engine.generate_several(request, [request.seed, 99])
                    if isinstance(event, OneOfSeveral) and event.index == 0 and isinstance(event.event, Finished)
                ]
                self.answers[number] = ended[0].token_ids
            case "left":
                with engine.generate(request) as events:
                    next(event for event in events if isinstance(event, TextDelta))
            case "cancelled":
                running = engine.generate(request)
                timer = threading.Timer(self._random.random() / 50, running.cancel)
                timer.start()
                *_, last = running
                assert isinstance(last, Finished)
                assert last.reason in ("cancelled", "max_new_tokens")
            case "score":
                *_, scored = engine.score(ScoreRequest(request.prompt_ids, 1))
                assert isinstance(scored, Scored)
                assert len(scored.places) == len(request.prompt_ids)


def test_each_thread_reads_what_it_would_alone_and_nothing_is_left(folder: Path) -> None:
    engine = loaded(folder)
    readers = [Reader(engine, seed) for seed in range(6)]
    for one in readers:
        one.start()
    for one in readers:
        one.join(PATIENCE * 4)
        assert not one.is_alive()
    assert [one.failed for one in readers] == [[]] * 6
    wanted: dict[int, tuple[int, ...]] = {}
    for number in sorted({number for one in readers for number in one.answers}):
        *_, last = loaded(folder).generate(asked(number))
        assert isinstance(last, Finished)
        wanted[number] = last.token_ids
    assert wanted
    for one in readers:
        assert one.answers == {number: wanted[number] for number in one.answers}
    # Only the sequence that was computed last still has its pages.
    assert engine.cache_report().running <= 2


def test_who_reads_slowly_does_not_hold_up_the_others(folder: Path) -> None:
    engine = loaded(folder)
    slow = engine.generate(GenerationRequest(list(range(10, 30)), WARM, max_new_tokens=400, seed=1))
    next(event for event in slow if isinstance(event, TextDelta))
    # Nobody reads it any further, and another one comes to its end beside it.
    done = threading.Event()

    def read() -> None:
        list(engine.generate(GenerationRequest(list(range(40, 60)), WARM, max_new_tokens=60, seed=2)))
        done.set()

    threading.Thread(target=read, daemon=True).start()
    assert done.wait(PATIENCE)
    # What was made of it meanwhile is told when it is read.
    *_, last = slow
    assert isinstance(last, Finished)
    assert len(last.token_ids) == 400


def test_what_fails_between_two_turns_is_told_and_the_next_one_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(folder)
    told: queue.SimpleQueue[object] = queue.SimpleQueue()

    def fails() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(engine._parts.scheduler, "_admit", fails)
    engine.submit(asked(0), told.put)
    failed = told.get(timeout=PATIENCE)
    assert isinstance(failed, Failed)
    monkeypatch.undo()
    engine.submit(asked(1), told.put)
    while not isinstance(event := told.get(timeout=PATIENCE), Finished):
        assert not isinstance(event, Failed)
    engine.unload()
