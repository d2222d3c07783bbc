"""A conversation owns how it is spoken to: it comes back with it, others have their own, an undo takes it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.chat.own_settings import OwnSettings
from exlchat.app.generation_settings import NAMES
from exlchat.app.options import AppOptions
from exlchat.chat.constraints import constraint_of
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.store.conversations import ConversationStore
from exlchat.config.layers import typed
from exlchat.llm.constraint import Constraint
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, chat_app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

ADA = FrozenPersona("Ada", "Ada", "User", 0, system="You are Ada.", greetings=("Come in.", "Hello."))


@pytest.fixture
def narrator(home: Path) -> str:
    folder = paths.folders().personas
    folder.mkdir(parents=True)
    (folder / "bard.toml").write_text(
        'name = "Bard"\nsystem = "Tell it."\ntemplate = "plain"\n[sampling]\ntemperature = 1.5\ntop_k = 9\n'
    )
    return "bard"


async def talk(pilot: Pilot[int], text: str) -> str:
    """Say something and wait for the answer; the id of the conversation."""
    await say(pilot, text)
    await idle(pilot)
    ident = chat_app(pilot).session.conversation_id
    assert ident is not None
    return ident


async def test_a_persona_of_another_conversation_changes_nothing_in_an_old_one(tmp_path: Path, narrator: str) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.", "Four.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        old = await talk(pilot, "old?")
        await pilot.press("ctrl+n")
        await say(pilot, f"/persona {narrator}")
        told_by = await talk(pilot, "new?")
        assert engine.requests[-1].sampling.temperature == 1.5
        assert "<|im_start|>" not in engine.prompts[-1]
        chat.chat_screen.open_conversation(old)
        await talk(pilot, "old again?")
        assert engine.requests[-1].sampling.temperature == 0.0
        assert "Tell it." not in engine.prompts[-1]
        assert "<|im_start|>" in engine.prompts[-1]
        # A new one is as the program begins.
        await pilot.press("ctrl+n")
        assert chat.session.persona is None
        assert chat.session.generation.sampling.temperature == 0.0
        chat.chat_screen.open_conversation(told_by)
        assert chat.session.persona is not None
        assert chat.session.generation.source("top_k") == "persona Bard"


async def test_all_of_it_is_there_after_a_restart(tmp_path: Path, narrator: str) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, f"/persona {narrator}")
        await say(pilot, "/set temperature 0.3")
        await say(pilot, "/choice yes, no")
        await say(pilot, "/template chatml")
        ident = await talk(pilot, "a?")
    engine = ScriptedEngine("Two.")
    again = app(tmp_path, engine)
    async with again.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        assert again.session.generation.sampling.temperature == 0.0
        again.chat_screen.open_conversation(ident)
        held = again.session.generation
        assert (held.sampling.temperature, held.sampling.top_k) == (0.3, 9)
        assert (held.source("temperature"), held.source("top_k")) == ("conversation", "persona Bard")
        assert held.speech.constraint == Constraint("choice", constraint_of("choice", "yes, no").text)
        assert again.session.template == "chatml"
        await talk(pilot, "b?")
        assert engine.requests[-1].sampling.temperature == 0.3
        assert engine.requests[-1].constraint == held.speech.constraint


async def test_a_change_in_the_middle_is_undone_and_done_again(tmp_path: Path, narrator: str) -> None:
    chat = app(tmp_path, ScriptedEngine("One.", "Two."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talk(pilot, "a?")
        await say(pilot, "/set top_k 5")
        await say(pilot, f"/persona {narrator}")
        assert chat.session.generation.sampling.top_k == 9
        await say(pilot, "/undo")
        assert "Undone: persona" in told(chat)
        assert chat.session.persona is None
        assert chat.session.generation.sampling.top_k == 5
        await say(pilot, "/undo")
        assert "Undone: settings" in told(chat)
        assert chat.session.generation.sampling.top_k == 0
        await say(pilot, "/redo")
        await say(pilot, "/redo")
        assert chat.session.persona is not None
        assert chat.session.generation.sampling.top_k == 9
        await say(pilot, "/system Be brief.")
        await say(pilot, "/undo")
        assert chat.session.system_prompt == "Tell it."


async def test_a_key_held_down_is_one_change(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(100, 40)) as pilot:
        await talk(pilot, "a?")
        for value in ("1", "2", "3"):
            await say(pilot, f"/set top_k {value}")
        await say(pilot, "/undo")
        assert chat.session.generation.sampling.top_k == 0
        await say(pilot, "/redo")
        assert chat.session.generation.sampling.top_k == 3


async def test_it_goes_on_with_another_answer_and_with_an_edit(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.", "Four.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await talk(pilot, "a?")
        await say(pilot, "/set top_k 5")
        await say(pilot, "/retry")
        await idle(pilot)
        assert engine.requests[-1].sampling.top_k == 5
        assert chat.session.generation.sampling.top_k == 5
        await pilot.press("ctrl+up", "up", "r")
        await idle(pilot)
        assert engine.requests[-1].sampling.top_k == 5
        assert chat.session.generation.sampling.top_k == 5
        await say(pilot, "/edit 2")
        await say(pilot, "b?")
        await idle(pilot)
        assert engine.requests[-1].sampling.top_k == 5
        assert chat.session.generation.sampling.top_k == 5
        # The first answer is as it was spoken to.
        await say(pilot, "/tree 2")
        await pilot.pause()
    assert [one.sampling.top_k for one in engine.requests] == [0, 5, 5, 5]


async def test_a_change_while_an_answer_is_written_is_kept_though_the_answer_comes_to_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "a?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await say(pilot, "/set top_k 5")
        ident = chat.session.conversation_id
        engine.release()
        await idle(pilot)
    again = app(tmp_path)
    async with again.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert ident is not None
        again.chat_screen.open_conversation(ident)
        assert again.session.generation.sampling.top_k == 5


async def test_what_a_start_was_given_belongs_to_the_conversations_that_begin_in_it(tmp_path: Path) -> None:
    from exlchat.app.services import open_services

    first = ChatApp(open_services(AppOptions(None, layers=(typed(top_k=7),))))
    store = first.session.store
    ident = store.create_conversation().id
    store.add_message(ident, "user", "old?", settings=OwnSettings({"top_k": 3, "top_p": 0.5}).as_json())
    session = first.session
    session.open(ident)
    # What was typed now wins over what an older run said, until it is said anew in the conversation.
    assert (session.generation.sampling.top_k, session.generation.source("top_k")) == (7, "typed")
    assert session.generation.source("top_p") == "conversation"
    session.draw_by(session.generation.with_value("top_k", "4"))
    assert (session.generation.sampling.top_k, session.generation.source("top_k")) == (4, "conversation")
    session.start_new()
    assert session.generation.sampling.top_k == 7
    session.open(ident)
    assert session.generation.sampling.top_k == 4


async def test_a_greeting_keeps_what_is_said_before_the_first_message(tmp_path: Path) -> None:
    engine = ScriptedEngine("Sit down.")
    chat = app(tmp_path, engine, persona=ADA)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        await say(pilot, "/set top_k 5")
        await say(pilot, "/alternative 2")
        await pilot.pause()
        assert chat.session.generation.sampling.top_k == 5
        await talk(pilot, "a?")
        assert engine.requests[-1].sampling.top_k == 5


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"values": []},
        {"values": {"temperature": "warm", "no_such": 1, "top_k": -3, "seed": "x", "template": 7, "max_tokens": 0}},
        {"values": {"constraint": {"kind": 3}, "stop": 5, "logit_bias": [[]], "order": ["nothing"]}, "presets": 4},
        {"values": {"temperature": 10**400, "context_policy": "never"}, "presets": {"top_k": "preset x"}},
    ],
)
def test_what_cannot_be_is_left_out(tmp_path: Path, content: dict[str, object]) -> None:
    assert OwnSettings.from_json(content) == OwnSettings()
    chat = app(tmp_path)
    ident = chat.session.store.create_conversation().id
    chat.session.store.add_message(ident, "user", "hello", settings=content)
    chat.session.open(ident)
    assert chat.session.generation.sampling.temperature == 0.0


async def test_values_that_contradict_each_other_are_told_and_what_is_usual_holds(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        store = chat.session.store
        ident = store.create_conversation().id
        content = OwnSettings({"dynatemp_low": 3.0, "dynatemp_high": 2.0}).as_json()
        store.add_message(ident, "user", "hello", settings=content)
        chat.chat_screen.open_conversation(ident)
        await pilot.pause()
        assert "does not go with what holds now" in told(chat)
        assert chat.session.generation.sampling.dynatemp_high == 0.0
        assert chat.session.branch[0].settings == content


def test_every_value_comes_out_of_the_file_as_it_went_in(tmp_path: Path) -> None:
    values = {
        "temperature": 0.25,
        "dry_breakers": ("x", "\n"),
        "logit_bias": ((" the", -2.0), (5, 1.0)),
        "banned_tokens": (3, "y"),
        "stop": ("END", 7),
        "constraint": Constraint("regex", "[a-z]+"),
        "think": None,
        "thinking_budget": 5,
        "seed": None,
        "max_tokens": 12,
        "context_policy": "drop",
        "template": None,
    }
    assert values.keys() <= {*NAMES, "template"}
    own = OwnSettings(values, {"temperature": "preset wild"})
    store = ConversationStore(tmp_path / "c.db")
    ident = store.create_conversation().id
    store.add_message(ident, "user", "hello", settings=own.as_json())
    assert OwnSettings.from_json(store.load(ident).branch[0].settings) == own


async def test_the_screen_says_whose_it_is(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(120, 40)) as pilot:
        await talk(pilot, "a?")
        await say(pilot, "/set top_k 4")
        await say(pilot, "/template plain")
        await say(pilot, "/settings template")
        text = " ".join(shown(chat).split())
        assert "template = plain (conversation)" in text
        await pilot.press("f6")
        await pilot.pause()
        assert "top_k 4 conversation" in " ".join(shown(chat).replace("│", " ").split())


async def test_a_conversation_that_was_held_with_another_model_says_so(tmp_path: Path) -> None:
    first = app(tmp_path, ScriptedEngine("One.", name="odd\x1b[2Jname"))
    async with first.run_test(size=(100, 30)) as pilot:
        ident = await talk(pilot, "a?")
    again = app(tmp_path, ScriptedEngine("Two."))
    async with again.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: again.chat_screen.model.info is not None)
        again.chat_screen.open_conversation(ident)
        await pilot.pause()
        assert "This conversation was held with odd" in told(again)
        assert "\x1b" not in told(again)
        again.chat_screen.new_conversation()
        there = await talk(pilot, "b?")
        again.chat_screen.open_conversation(there)
        await pilot.pause()
        assert told(again).count("was held with") == 1
