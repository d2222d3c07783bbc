"""Lore in turns on a real store: told once, kept with its message, and the second prompt begins with the first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.opening import begin_conversation
from exlchat.chat.personas.persona import Persona
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import SamplingSettings
from tests.chat import templates
from tests.chat.scripted_engine import ScriptedEngine

OPTIONS = TurnOptions(sampling=SamplingSettings())
LORE = Lorebook(
    (LoreEntry("Dragons here are blue.", keys=("dragon",)), LoreEntry("The queen sleeps.", keys=("queen",)))
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    opened = ConversationStore(tmp_path / "conversations.db")
    yield opened
    opened.close()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(chat_template=templates.CHATML)


def persona() -> FrozenPersona:
    told = Persona(name="Narrator", system="You tell a tale.", greeting="Once upon a time.", lorebook=LORE)
    return freeze(told, user="Ann", now=datetime(2026, 11, 21), seed=1)


def say(store: ConversationStore, engine: ScriptedEngine, conversation_id: str, text: str) -> str:
    """Asks, and returns the prompt that the engine got."""
    store.add_message(conversation_id, "user", text)
    engine.will_say("Well.")
    *_, last = answer(store, engine, conversation_id, OPTIONS)
    assert isinstance(last, AnswerClosed)
    return engine.text_with_special_tokens(engine.requests[-1].prompt_ids)


def test_lore_is_told_with_the_message_that_calls_for_it_and_stays_there(
    store: ConversationStore, engine: ScriptedEngine
) -> None:
    conversation = begin_conversation(store, persona())
    first = say(store, engine, conversation.id, "Where is the dragon?")
    assert first.count("Dragons here are blue.") == 1
    assert first.index("Dragons here are blue.") < first.index("Where is the dragon?")
    second = say(store, engine, conversation.id, "And the dragon's queen?")
    assert second.startswith(first)
    assert second.count("Dragons here are blue.") == 1
    assert second.count("The queen sleeps.") == 1
    shown = [one.text for one in store.load(conversation.id).branch]
    assert shown[2] == "Where is the dragon?"


def test_an_answer_given_again_sees_the_same_lore(store: ConversationStore, engine: ScriptedEngine) -> None:
    conversation = begin_conversation(store, persona())
    first = say(store, engine, conversation.id, "A dragon!")
    answered = store.load(conversation.id).branch[-1]
    engine.will_say("Again.")
    list(answer(store, engine, conversation.id, OPTIONS, retry_of=answered.id))
    assert engine.text_with_special_tokens(engine.requests[-1].prompt_ids) == first


def test_who_spoke_is_in_the_tree_and_in_the_record(store: ConversationStore, engine: ScriptedEngine) -> None:
    conversation = begin_conversation(store, persona())
    say(store, engine, conversation.id, "Hello.")
    branch = store.load(conversation.id).branch
    assert branch[0].persona == persona().as_json()
    assert branch[-1].record is not None
    assert branch[-1].record.persona == "Narrator"


def test_a_persona_that_is_damaged_on_disk_is_one_line(store: ConversationStore, engine: ScriptedEngine) -> None:
    conversation = store.create_conversation()
    store.add_message(conversation.id, "system", "You tell.", persona={"name": 7, "lorebook": {}})
    store.add_message(conversation.id, "user", "A dragon!")
    with pytest.raises(TurnError) as failed:
        list(answer(store, engine, conversation.id, OPTIONS))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("thinking", [True, False, None])
def test_a_persona_says_whether_the_model_thinks_first(
    store: ConversationStore, engine: ScriptedEngine, thinking: bool | None
) -> None:
    engine.with_info(chat_template=templates.CHATML + "{{ '[' ~ enable_thinking ~ ']' if enable_thinking is defined }}")
    told = Persona(name="Thinker", system="You think.", thinking=thinking)
    conversation = begin_conversation(store, freeze(told, user="Ann", now=datetime(2026, 11, 21), seed=1))
    prompt = say(store, engine, conversation.id, "Why?")
    assert prompt.endswith(f"[{thinking}]") == (thinking is not None)
    record = store.load(conversation.id).branch[-1].record
    assert record is not None
    assert record.thinking_on is thinking


@pytest.mark.parametrize("count", [12, 1])
def test_chance_gives_a_message_the_same_lore_however_often_it_is_answered(
    store: ConversationStore, engine: ScriptedEngine, count: int
) -> None:
    """Also where chance gave it none, which nothing is kept of."""
    entries = tuple(LoreEntry(f"Fact {n}.", keys=("/dragon/i",), probability=50) for n in range(count))
    told = Persona(name="Narrator", system="You tell a tale.", lorebook=Lorebook(entries))
    for seed in range(4):
        frozen = freeze(told, user="Ann", now=datetime(2026, 11, 21), seed=seed)
        first = say(store, engine, begin_conversation(store, frozen).id, "A dragon!")
        conversation = begin_conversation(store, frozen)
        assert say(store, engine, conversation.id, "A dragon!") == first, "the same seed, another conversation"
        for _ in range(3):
            engine.will_say("Again.")
            list(answer(store, engine, conversation.id, OPTIONS, retry_of=store.load(conversation.id).branch[-1].id))
            assert engine.text_with_special_tokens(engine.requests[-1].prompt_ids) == first
        assert count == 1 or 0 < first.count("Fact") < count


def test_a_constant_entry_that_may_fail_is_no_part_of_the_system_prompt() -> None:
    entries = (
        LoreEntry("Always.", constant=True),
        LoreEntry("Never.", constant=True, probability=0),
        LoreEntry("Maybe.", constant=True, probability=50),
        LoreEntry("Later.", constant=True, delay=2),
        LoreEntry("One of two.", constant=True, group="g"),
    )
    frozen = freeze(Persona("N", system="S", lorebook=Lorebook(entries)), user="A", now=datetime(2026, 11, 21), seed=1)
    assert frozen.told == (0,)
    assert FrozenPersona.from_json(frozen.as_json()) == frozen


def test_patterns_see_who_said_what(store: ConversationStore, engine: ScriptedEngine) -> None:
    entry = LoreEntry("Ann spoke of it.", keys=(r"/\x01{{user}}: [^\x01]*dragon/",))
    told = Persona(name="Narrator", greeting="A dragon came.", lorebook=Lorebook((entry,)))
    frozen = freeze(told, user="Ann", now=datetime(2026, 11, 21), seed=1)
    conversation = begin_conversation(store, frozen)
    assert "Ann spoke" not in say(store, engine, conversation.id, "Go on.")
    assert "Ann spoke" in say(store, engine, conversation.id, "The dragon?")
