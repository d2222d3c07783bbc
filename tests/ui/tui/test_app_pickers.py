"""Lists to choose from: branches, what was found, personas, prompt formats, presets."""

from __future__ import annotations

from pathlib import Path

from exlchat import paths
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_messages import branch, talked


async def test_a_branch_is_chosen_from_the_tree(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two", "three", "other"))
    async with chat.run_test(size=(110, 36)) as pilot:
        await talked(pilot, "1?", "2?", "3?")
        await pilot.press("ctrl+up", "home", "down", "r")
        await idle(pilot)
        assert branch(chat) == ["1?", "other"]
        await say(pilot, "/tree")
        await pilot.pause()
        screen = shown(chat)
        for line in ("user: 1?", "assistant: one", "user: 3?", "assistant: other"):
            assert line in screen
        await pilot.press(*"2?")
        await pilot.pause()
        assert "user: 3?" not in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert branch(chat) == ["1?", "one", "2?", "two", "3?", "three"]
        await pilot.press("c")
        assert chat.clipboard == "2?"
        await pilot.press("t", "escape")
        await pilot.pause()
        assert branch(chat) == ["1?", "one", "2?", "two", "3?", "three"]


async def test_what_was_said_last_month_is_found_and_shown(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("flour and water", "sand", "other"))
    store = chat.session.store
    async with chat.run_test(size=(110, 36)) as pilot:
        await talked(pilot, "How do I bake bread?", "And a castle?")
        first = chat.session.conversation_id
        await pilot.press("ctrl+up", "home", "down", "r")
        await idle(pilot)
        await pilot.press("ctrl+n")
        await pilot.press("f3", *"flou wat")
        await pilot.pause()
        assert "flour and water" in shown(chat)
        assert "How do I bake bread?" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert chat.session.conversation_id == first
        assert branch(chat) == ["How do I bake bread?", "flour and water", "And a castle?", "sand"]
        await pilot.press("c")
        assert chat.clipboard == "flour and water"
        await say(pilot, "/search zebra")
        await pilot.pause()
        assert "Nothing has that in it" in shown(chat)
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert chat.screen is chat.chat_screen
    assert store.list_conversations() != []


async def test_a_persona_a_preset_and_a_format_are_chosen_with_a_preview(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Yes."))
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/persona")
        await pilot.pause()
        await pilot.press(*"teach")
        await pilot.pause()
        assert "You are a patient teacher." in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert chat.session.persona is not None
        assert chat.session.persona.name == "Teacher"
        await say(pilot, "/preset")
        await pilot.pause()
        await pilot.press(*"precise", "enter")
        await pilot.pause()
        assert chat.session.generation.sampling.temperature > 0
        await say(pilot, "/template")
        await pilot.pause()
        await pilot.press(*"llama-3")
        await pilot.pause()
        assert "<|start_header_id|>system<|end_header_id|>" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert chat.session.template == "llama-3"


async def test_a_broken_persona_is_named_and_the_others_are_there(tmp_path: Path) -> None:
    folder = paths.folders().personas
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bad.toml").write_text("systm = 1\n")
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/persona")
        await pilot.pause()
        assert "did you mean system?" in told(chat)
        assert "Narrator" in shown(chat)


async def test_the_prompt_is_shown_with_its_tokens_and_what_is_cached(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Yes.\x1b[2J"))
    async with chat.run_test(size=(110, 36)) as pilot:
        await talked(pilot, "Well?")
        await pilot.press("f4")
        await until(pilot, lambda: "<|im_start|>user" in shown(chat))
        screen = shown(chat)
        assert "Well?<|im_end|>" in screen
        assert "Yes.␛[2J" in screen
        assert "user: 5 tokens" in screen
        assert "in the cache" in screen
        await pilot.press("escape")
        await pilot.pause()
        assert chat.screen is chat.chat_screen
