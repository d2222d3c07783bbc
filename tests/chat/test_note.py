"""An author's note stands in the prompt so many messages before its end, and belongs to the branch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.exchange import jsonl
from exlchat.chat.exchange.limits import Problems
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.model import Message
from exlchat.chat.prompt.ids import OPENER, prompt_messages
from exlchat.chat.prompt.inspection import inspected
from exlchat.chat.prompt.note import DEEPEST, LONGEST, Note, note_in
from exlchat.chat.reproduce import prompt_again
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY, SamplingSettings
from tests.chat import templates
from tests.chat.scripted_engine import ScriptedEngine
from tests.chat.talk import Talk

ADA = {"name": "Ada Lovelace", "char": "Ada", "user": "Bo"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConversationStore]:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    opened = ConversationStore(None)
    yield opened
    opened.close()


def branch(roles: str) -> list[Message]:
    """Messages called by their places, of the roles s, u and a."""
    named = {"s": "system", "u": "user", "a": "assistant"}
    return [Message(str(place), None, named[role], str(place), 0.0) for place, role in enumerate(roles)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("roles", "depth", "wanted"),
    [
        ("uauau", 0, ["0", "1", "2", "3", "4\n\nN"]),
        ("uauau", 1, ["0", "1", "2", "3", "N\n\n4"]),
        # Before an answer it goes behind what the user said: an answer stays as the model gave it.
        ("uauau", 2, ["0", "1", "2\n\nN", "3", "4"]),
        ("uauau", 3, ["0", "1", "N\n\n2", "3", "4"]),
        ("uauau", 5, ["N\n\n0", "1", "2", "3", "4"]),
        ("uauau", 99, ["N\n\n0", "1", "2", "3", "4"]),
        # Of a conversation that was answered it stands where it stood when that was asked.
        ("uauaua", 1, ["0", "1", "2", "3", "N\n\n4", "5"]),
        ("suau", 2, ["0", "1\n\nN", "2", "3"]),
        ("au", 4, [f"N\n\n{OPENER}", "0", "1"]),
        # What the user said twice becomes one message; it stands between the two.
        ("uu", 1, ["0\n\nN\n\n1"]),
    ],
)
def test_it_stands_so_many_messages_before_the_end(roles: str, depth: int, wanted: list[str]) -> None:
    assert [one.text for one in prompt_messages(branch(roles), Note("N", depth))] == wanted


def test_without_messages_there_is_none() -> None:
    assert prompt_messages([], Note("N")) == []
    assert [one.text for one in prompt_messages(branch("s"), Note("N"))] == ["0"]


def said(settings: Mapping[str, Any] | None = None, text: str = "{{char}} is tired of {{user}}.") -> dict[str, Any]:
    return {"values": {}, "note": {"text": text, "depth": 1, "user": "Sam"}, **(settings or {})}


def ask(store: ConversationStore, engine: ScriptedEngine, ident: str, question: str, **how: Any) -> Message:
    store.add_message(ident, "user", question, settings=how.pop("settings", None))
    engine.will_say(" fox")
    *_, last = answer(store, engine, ident, TurnOptions(GREEDY, template="log"), **how)
    assert isinstance(last, AnswerClosed)
    return last.message


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.decode(engine.requests[-1].prompt_ids, special=True)


def test_every_answer_is_asked_with_it_in_the_names_of_those_who_speak(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    store.add_message(ident, "system", "Be brief.", persona=ADA)
    ask(store, engine, ident, "Hi", settings=said())
    assert prompt_of(engine) == "<s>Be brief.\n\nBo: Ada is tired of Bo.\n\nHi\nAda:"
    # It wanders with the end of the conversation.
    message = ask(store, engine, ident, "Go on.")
    assert prompt_of(engine) == "<s>Be brief.\n\nBo: Hi\nAda: fox\nBo: Ada is tired of Bo.\n\nGo on.\nAda:"
    before = store.branch(message.parent_id)
    assert inspected(engine, before, template="log", policy="stop").layout.text == prompt_of(engine)


def test_where_no_persona_speaks_the_user_has_the_name_of_the_settings(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    ask(store, engine, ident, "Hi", settings=said())
    assert "Assistant is tired of Sam.\n\nHi" in prompt_of(engine)


def test_a_name_is_not_looked_through_for_macros(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    store.add_message(ident, "system", "", persona={**ADA, "char": "{{user}}{{user}}"})
    ask(store, engine, ident, "Hi", settings=said())
    assert "{{user}}{{user}} is tired of Bo." in prompt_of(engine)


def test_an_answer_is_asked_for_again_with_the_note_that_it_had(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    message = ask(store, engine, ident, "Hi", settings=said())
    # Set on the answer, as it is when somebody changes it behind one.
    store.keep_settings(ident, said(text="Another."))
    again = prompt_again(store, engine, store.message(message.id))
    assert again.same is True
    assert "Assistant is tired of Sam." in "".join(one.text for one in again.messages)
    assert store.message(message.id).record == message.record
    assert message.record is not None
    assert message.record.note == Note("Assistant is tired of Sam.", 1, "Sam")


def test_an_answer_given_again_is_asked_with_the_note_that_holds_now(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    message = ask(store, engine, ident, "Hi")
    store.keep_settings(ident, said(text="Rain."))
    engine.will_say("dog")
    warm = TurnOptions(SamplingSettings(temperature=0.7), template="log")
    *_, last = answer(store, engine, ident, warm, retry_of=message.id)
    assert "Rain.\n\nHi" in prompt_of(engine)
    assert isinstance(last, AnswerClosed)
    # And the alternative shows it when it is the branch, the old answer does not lose what it had.
    assert note_in(store.load(ident).branch[-1].settings) == Note("Rain.", 1, "Sam")


def test_it_stays_when_the_oldest_messages_are_dropped(store: ConversationStore) -> None:
    engine = ScriptedEngine(chat_template=templates.CHATML, max_seq_len=1024)
    talk = Talk(store, engine, system=None)
    store.add_message(talk.id, "user", "First", settings={"values": {}, "note": {"text": "NOTED", "depth": 500}})
    talk.answer("drop")
    talk.until_cut("drop")
    assert "First" not in talk.prompt
    assert talk.prompt.count("NOTED") == 1
    assert talk.prompt.startswith("<|im_start|>user\nNOTED\n\n")


def test_a_mark_in_it_is_text(store: ConversationStore) -> None:
    engine = ScriptedEngine(chat_template=templates.CHATML)
    ident = store.create_conversation().id
    store.add_message(ident, "user", "Hi", settings=said(text="<|im_end|>"))
    engine.will_say("fox")
    list(answer(store, engine, ident, TurnOptions(GREEDY)))
    ids = engine.requests[-1].prompt_ids
    (mark,) = engine.encode("<|im_end|>")
    # One behind the user's message, none for the text that looks like it.
    assert list(ids).count(mark) == 1


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        [],
        {"text": 1},
        {"text": " "},
        {"text": "x", "depth": -1},
        {"text": "x", "depth": DEEPEST + 1},
        {"text": "x", "depth": True},
        {"text": "x", "depth": 1.5},
        {"text": "x" * (LONGEST + 1)},
        {"text": "x", "user": 1},
    ],
)
def test_what_is_no_note_in_a_file_is_none(content: Any) -> None:
    assert Note.from_json(content) is None


def test_it_goes_into_our_file_and_comes_back(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    ident = store.create_conversation().id
    message = ask(store, engine, ident, "Hi", settings=said())
    lines = [json.loads(line) for line in jsonl.lines([store.read_tree(ident)])]
    parsed = Parsed(lines, range(1, len(lines) + 1), by_line=True)
    (tree,) = jsonl.conversations(parsed, Problems())
    assert [note_in(one.settings) for one in tree.messages] == [Note("{{char}} is tired of {{user}}.", 1, "Sam"), None]
    assert tree.messages[-1].record == message.record
