"""The engine has every part of the contract, and answers what was submitted as what was asked for in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from exlchat.engine import LocalEngine, load
from exlchat.llm.events import Event, Finished, TextDelta
from exlchat.llm.port import AnswersSeveral, CanScore, Failed, HasCache, HoldsMemory, NamesWhatIsNotHeld
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts
from exlchat.paths import bundled_model


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    engine = load(bundled_model(), device="cpu")
    yield engine
    engine.unload()


class Sink:
    def __init__(self) -> None:
        self.told: list[Event | Failed] = []
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, event: Event | Failed) -> None:
        self.told.append(event)
        if isinstance(event, TextDelta):
            self.begun.set()
        if isinstance(event, Finished | Failed):
            self.ended.set()


def test_it_has_all_optional_parts(engine: LocalEngine) -> None:
    for part in (AnswersSeveral, CanScore, HasCache, HoldsMemory, NamesWhatIsNotHeld):
        assert isinstance(engine, part), part


def test_what_is_submitted_is_told_to_its_end(engine: LocalEngine) -> None:
    request = GenerationRequest(engine.encode("How do I quit?"), max_new_tokens=8)
    sink = Sink()
    engine.submit(request, sink)
    assert sink.ended.wait(60)
    last = sink.told[-1]
    assert isinstance(last, Finished)
    assert "".join(event.text for event in sink.told if isinstance(event, TextDelta)) == last.text
    *_, alone = engine.generate(request)
    assert isinstance(alone, Finished)
    assert alone.token_ids == last.token_ids


def test_its_handle_ends_it(engine: LocalEngine) -> None:
    sink = Sink()
    handle = engine.submit(GenerationRequest(engine.encode("How do I quit?"), stop=(), max_new_tokens=4000), sink)
    assert sink.begun.wait(60)
    handle.cancel()
    assert sink.ended.wait(60)
    last = sink.told[-1]
    assert isinstance(last, Finished)
    assert last.reason in ("cancelled", "stop_token")
    handle.cancel()


def test_what_cannot_be_carried_out_is_refused_at_once(engine: LocalEngine) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.submit(GenerationRequest(()), Sink())


def test_texts_are_told_in_their_channels_and_are_the_answer_together(engine: LocalEngine) -> None:
    request = GenerationRequest(engine.encode("How do I quit?"), max_new_tokens=24)
    *_, plain = engine.generate(request)
    assert isinstance(plain, Finished)
    words = plain.text.split()
    opening, closing = plain.text[: len(plain.text) - len(plain.text.lstrip())] + words[0], words[3]
    marked = GenerationRequest(
        request.prompt_ids, max_new_tokens=24, thoughts=Thoughts(ThinkingMarks(opening.strip(), closing))
    )
    *deltas, last = (event for event in engine.generate(marked) if isinstance(event, TextDelta | Finished))
    assert isinstance(last, Finished)
    assert (last.text, last.token_ids) == (plain.text, plain.token_ids)
    assert "".join(event.text for event in deltas if isinstance(event, TextDelta)) == plain.text
    assert sum((event.token_ids for event in deltas if isinstance(event, TextDelta)), ()) == plain.token_ids
    thoughts = "".join(one.text for one in deltas if isinstance(one, TextDelta) and one.channel == "thought")
    assert thoughts.split() == words[1:3]
    behind = "".join(one.text for one in deltas if isinstance(one, TextDelta) and one.channel == "answer")
    assert behind.split() == words[4:]


def test_closing_one_with_thoughts_ends_its_work(engine: LocalEngine) -> None:
    thoughts = Thoughts(ThinkingMarks("<x>", "</x>", opened=True))
    request = GenerationRequest(engine.encode("How do I quit?"), max_new_tokens=4000, thoughts=thoughts)
    with engine.generate(request) as events:
        assert next(one for one in events if isinstance(one, TextDelta) and one.text).channel != "answer"
    assert not engine._parts.scheduler.step(), "nothing is left to do"
