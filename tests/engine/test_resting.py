"""An answer that stands still takes nothing from others, and comes to what it would have been."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.engine import LocalEngine, load
from exlchat.llm.events import Event, Finished, TextDelta
from exlchat.llm.port import CanRest, Failed, Handle
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import SamplingSettings
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    path = save_endless_llama(tmp_path_factory.mktemp("models") / "endless")
    loaded = load(path, device="cpu", kv_cache="fp32", max_seq_len=2048, cache_tokens=8192, bundled=True)
    yield loaded
    loaded.unload()


class Listener:
    """Counts events, and has the answer rest behind some of them."""

    def __init__(self, engine: LocalEngine, request: GenerationRequest, rest_behind: int = 0) -> None:
        self.events: list[Event | Failed] = []
        self.still = threading.Event()
        self.ended = threading.Event()
        self._rest_behind = rest_behind
        self._there = threading.Event()
        self.handle: Handle = engine.submit(request, self._hear)
        self._there.set()

    def _hear(self, event: Event | Failed) -> None:
        assert self._there.wait(PATIENCE)
        self.events.append(event)
        if len(self.events) == self._rest_behind:
            assert isinstance(self.handle, CanRest)
            self.handle.rest()
            self.still.set()
        if isinstance(event, Finished | Failed):
            self.ended.set()

    @property
    def finished(self) -> Finished:
        assert self.ended.wait(PATIENCE)
        found = self.events[-1]
        assert isinstance(found, Finished)
        return found


def wanted(engine: LocalEngine, text: str, most: int) -> GenerationRequest:
    return GenerationRequest(
        engine.encode(text), sampling=SamplingSettings(temperature=1.0), seed=5, max_new_tokens=most
    )


def test_it_goes_on_as_if_it_had_never_stood_still(engine: LocalEngine) -> None:
    expected = Listener(engine, wanted(engine, "A river runs", 60)).finished
    slow = Listener(engine, wanted(engine, "A river runs", 60), rest_behind=10)
    assert slow.still.wait(PATIENCE)
    others = [Listener(engine, wanted(engine, f"Others {number}", 40)) for number in range(3)]
    for other in others:
        assert other.finished.stats.new_tokens == 40
    assert len(slow.events) == 10
    assert isinstance(slow.events[-1], TextDelta)
    assert isinstance(slow.handle, CanRest)
    slow.handle.go_on()
    assert (slow.finished.token_ids, slow.finished.text) == (expected.token_ids, expected.text)


def test_it_can_be_cancelled_where_it_stands(engine: LocalEngine) -> None:
    slow = Listener(engine, wanted(engine, "A mill", 500), rest_behind=5)
    assert slow.still.wait(PATIENCE)
    slow.handle.cancel()
    assert slow.finished.reason == "cancelled"


def test_what_rests_when_the_model_is_unloaded_ends(tmp_path: Path) -> None:
    path = save_endless_llama(tmp_path / "endless")
    loaded = load(path, device="cpu", kv_cache="fp32", max_seq_len=512, bundled=True)
    slow = Listener(loaded, wanted(loaded, "A mill", 400), rest_behind=5)
    assert slow.still.wait(PATIENCE)
    loaded.unload()
    assert slow.finished.reason == "cancelled"
