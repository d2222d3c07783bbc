"""The prompt laid open is the prompt that is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.chat.prompt.inspection import inspected
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY
from tests.chat.scripted_engine import ScriptedEngine


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConversationStore]:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    opened = ConversationStore(None)
    yield opened
    opened.close()


def test_it_has_the_ids_that_the_next_answer_is_asked_with_and_says_whose_they_are(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    conversation = store.create_conversation().id
    store.add_message(conversation, "system", "Be brief.", persona={"name": "Ada", "thinking": False})
    store.add_message(conversation, "user", "Hello there")
    engine.will_say("the lazy dog")
    list(answer(store, engine, conversation, TurnOptions(GREEDY)))
    store.add_message(conversation, "user", "And you?")
    shown = inspected(engine, store.load(conversation).branch, template="chatml", policy="stop")
    engine.will_say("fine")
    list(answer(store, engine, conversation, TurnOptions(GREEDY, template="chatml")))
    assert shown.layout.ids == tuple(engine.requests[1].prompt_ids)
    assert "".join(shown.layout.pieces) == shown.layout.text
    texts = [
        "".join(shown.layout.pieces[one.first : one.last]).strip()
        for one in shown.layout.messages
        if one.first is not None
    ]
    assert texts == ["Be brief.", "Hello there", "the lazy dog", "And you?"]
    assert 0 < shown.cached < len(shown.layout.ids)


def test_behind_an_answer_it_ends_with_that(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    conversation = store.create_conversation().id
    store.add_message(conversation, "user", "Hello there")
    engine.will_say("the lazy dog")
    list(answer(store, engine, conversation, TurnOptions(GREEDY)))
    shown = inspected(engine, store.load(conversation).branch, template="chatml", policy="stop")
    assert shown.layout.text.rstrip().endswith("the lazy dog<|im_end|>")
