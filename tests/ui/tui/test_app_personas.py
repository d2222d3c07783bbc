"""The app started with a persona."""

from __future__ import annotations

from pathlib import Path

from exlchat import paths
from exlchat.chat.personas.frozen import FrozenPersona
from tests.ui.app_harness import app, idle, say, shown, told
from tests.ui.scripted_engine import ScriptedEngine

ADA = FrozenPersona("Ada", "Ada", "User", 0, system="You are Ada.", greetings=("Come in.", "Hello."))


async def test_the_greeting_is_there_at_once_and_the_model_sees_it(tmp_path: Path) -> None:
    engine = ScriptedEngine("Sit down.")
    chat = app(tmp_path, engine, persona=ADA)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "Come in." in shown(chat)
        assert chat.session.store.list_conversations() == []
        await say(pilot, "Thank you.")
        await idle(pilot)
        assert [one.role for one in chat.session.branch] == ["system", "assistant", "user", "assistant"]
        assert [one.text for one in chat.session.store.alternatives(chat.session.branch[1].id)] == [
            "Come in.",
            "Hello.",
        ]
        assert [one.title for one in chat.session.store.list_conversations()] == ["Thank you."]
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "Come in." in shown(chat)
        assert "Thank you." not in shown(chat).splitlines()[3]
    assert engine.prompts[0].startswith("<|im_start|>system\nYou are Ada.<|im_end|>\n")
    assert "<|im_start|>assistant\nCome in.<|im_end|>\n<|im_start|>user\nThank you.<|im_end|>" in engine.prompts[0]


async def test_what_is_typed_below_a_greeting_is_there_at_the_next_start(tmp_path: Path) -> None:
    chat = app(tmp_path, persona=ADA)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"thought")
        await pilot.press("ctrl+q")
    again = app(tmp_path, persona=ADA)
    async with again.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert again.chat_screen.composer.text == "thought"
        assert "Come in." in shown(again)


async def test_a_persona_without_a_greeting_waits_for_the_user(tmp_path: Path) -> None:
    engine = ScriptedEngine("Yes.")
    chat = app(tmp_path, engine, persona=FrozenPersona("Bo", "Bo", "User", 0, system="You are Bo."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert chat.session.conversation_id is None
        await say(pilot, "Bo?")
        await idle(pilot)
    assert engine.prompts[0].startswith("<|im_start|>system\nYou are Bo.<|im_end|>\n<|im_start|>user\nBo?")


async def test_another_persona_speaks_from_here_on(tmp_path: Path) -> None:
    engine = ScriptedEngine("Yes.", "Of course.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Hello.")
        await idle(pilot)
        await say(pilot, "/persona teacher")
        await pilot.pause()
        assert "speaks from here on" in told(chat)
        await say(pilot, "Why?")
        await idle(pilot)
        switch = chat.session.branch[2]
        assert switch.role == "system"
        assert switch.persona is not None
        assert switch.text in engine.prompts[1]
        assert chat.session.branch[-1].record is not None
        assert chat.session.branch[-1].record.persona == chat.session.persona.name
        folder = paths.folders().personas
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bo.toml").write_text('name = "Bo"\nmodel = "org/away"\n')
        await say(pilot, "/persona bo")
        await pilot.pause()
        assert "Bo speaks from here on; it is meant for another model: org/away: no such folder" in told(chat)
        await say(pilot, "/persona nobody-at-all")
        await pilot.pause()
        assert "nobody-at-all" in told(chat)
