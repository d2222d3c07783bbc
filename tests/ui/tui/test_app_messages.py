"""What is done to one message: by key under the cursor of the transcript, and by slash command."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


async def talked(pilot: Pilot[int], *prompts: str) -> None:
    for prompt in prompts:
        await say(pilot, prompt)
        await idle(pilot)


def branch(chat: ChatApp) -> list[str]:
    return [one.text for one in chat.session.branch]


TWO_BLOCKS = "Two:\n```python\nprint(1)\n```\nand\n```sh\nls\npwd\n```\n"


async def test_the_code_of_a_message_is_copied_block_by_block(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(TWO_BLOCKS, "none"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up", "C")
        assert "there is no code in this message" in told(chat)
        await pilot.press("up", "up", "C")
        assert chat.clipboard == "print(1)\n"
        assert "Copied code 1 of 2: python, 1 line" in told(chat)
        await pilot.press("C")
        assert chat.clipboard == "ls\npwd\n"
        await pilot.press("C")
        assert chat.clipboard == "print(1)\n"
        await pilot.press("escape")
        await say(pilot, "/copy code")
        assert chat.clipboard == "ls\npwd\n"
        await say(pilot, "/copy code 1")
        assert chat.clipboard == "print(1)\n"
        await say(pilot, "/copy code 3")
        assert "'3' is no block of code; the last message that has any has 2" in told(chat)


async def test_a_message_is_left_out_of_the_context_and_taken_in_again(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two", "three", "four", "five")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up", "up", "up", "x")
        assert "Left out: the model does not see “one”" in told(chat)
        assert "left out: the model does not see it" in shown(chat)
        await pilot.press("escape")
        await talked(pilot, "3?")
        assert "one" not in engine.prompts[-1]
        assert "1?" in engine.prompts[-1]
        await talked(pilot, "/take-in", "4?")
        assert "one" in engine.prompts[-1]
        await say(pilot, "/leave-out 99")
        assert "there is no message 99 counted from the end" in told(chat)
        await say(pilot, "/take-in")
        assert "no message of this conversation is left out" in told(chat)
        await say(pilot, "/leave-out 3")
        await say(pilot, "/undo")
        assert "left out: the model" not in shown(chat)
    assert branch(chat)[:2] == ["1?", "one"]


async def test_the_cursor_goes_over_messages_and_copies_one(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up")
        assert chat.chat_screen.transcript.has_focus
        await pilot.pause()
        assert "e edit · r answer again" in shown(chat)
        await pilot.press("up", "up", "c")
        assert chat.clipboard == "one"
        await pilot.press("k", "k", "k", "y")
        assert chat.clipboard == "1?"
        await pilot.press("end", "c")
        assert chat.clipboard == "two"
        await pilot.press("escape")
        assert chat.chat_screen.composer.has_focus
        await pilot.pause()
        assert "e edit" not in shown(chat)
        await pilot.press(*"typed")
        assert chat.chat_screen.composer.text == "typed"


async def test_an_edited_prompt_is_answered_beside_the_old_one(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two", "other"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        chat.chat_screen.composer.set_text("half a thought")
        await pilot.press("ctrl+up", "home", "e")
        assert chat.chat_screen.composer.text == "1?"
        assert "Editing your message" in shown(chat)
        await pilot.press(*" really?", "enter")
        await until(pilot, lambda: branch(chat) == ["1? really?", "other"])
        await idle(pilot)
        assert "‹2/2›" in shown(chat)
        assert "Editing" not in shown(chat)
        assert chat.chat_screen.composer.text == "half a thought"
        await pilot.press("ctrl+up", "home", "left")
        await pilot.pause()
        assert branch(chat) == ["1?", "one", "2?", "two"]
        await pilot.press("left")
        await pilot.pause()
        assert "this is the first of 2 alternatives" in told(chat)
        await pilot.press("right")
        await pilot.pause()
        assert branch(chat) == ["1? really?", "other"]


async def test_an_edit_can_be_left_and_the_draft_is_the_same(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        chat.chat_screen.composer.set_text("half a thought")
        await pilot.press("ctrl+up", "e", *"xyz")
        ident = chat.session.conversation_id
        chat.chat_screen.unsent.keep()
        assert chat.services.drafts.get(ident) == "half a thought"
        await pilot.press("escape")
        assert chat.chat_screen.composer.text == "half a thought"
        assert branch(chat) == ["1?", "one"]
        await pilot.press("ctrl+up", "e", "enter")
        await pilot.pause()
        assert "nothing was changed" in told(chat)
        assert chat.chat_screen.composer.text == "one"


async def test_an_edited_answer_is_gone_on_from_with_its_thoughts(tmp_path: Path) -> None:
    from tests.ui.tui.test_app import THINKING

    engine = ScriptedEngine("<think>Hm.</think>\n\nYes.", " and no", chat_template=THINKING)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        await say(pilot, "/edit")
        await pilot.pause()
        assert chat.chat_screen.composer.text == "Yes."
        chat.chat_screen.composer.set_text("Yes")
        await pilot.press("enter")
        await pilot.pause()
        assert branch(chat)[-1] == "<think>Hm.</think>\n\nYes"
        assert "edited · /continue goes on" in shown(chat)
        await say(pilot, "/continue")
        await until(pilot, lambda: "Yes and no" in shown(chat))
        await idle(pilot)
        assert engine.prompts[-1].endswith("<think>Hm.</think>\n\nYes")
        assert "‹3/3›" in shown(chat)


async def test_an_answer_is_given_again_from_the_middle(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two", "again", "once more"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up", "home", "down", "r")
        await until(pilot, lambda: branch(chat) == ["1?", "again"])
        await idle(pilot)
        await pilot.press("home", "r")
        await until(pilot, lambda: branch(chat) == ["1?", "once more"])
        await idle(pilot)
        await say(pilot, "/alternative 1")
        await pilot.pause()
        assert branch(chat) == ["1?", "one", "2?", "two"]
        await say(pilot, "/alternative 4")
        await pilot.pause()
        assert "alternatives 1 to 3" in told(chat)


async def test_a_branch_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two", "three"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        first = chat.session.conversation_id
        await say(pilot, "/branch 3")
        await pilot.pause()
        assert branch(chat) == ["1?", "one"]
        assert chat.session.conversation_id != first
        await talked(pilot, "3?")
        assert first is not None
        assert [one.text for one in chat.session.store.load(first).branch] == ["1?", "one", "2?", "two"]
        assert len(chat.session.store.list_conversations()) == 2


async def test_what_was_deleted_comes_back_step_by_step(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up", "up", "d")
        await pilot.pause()
        assert branch(chat) == ["1?", "one"]
        assert "u or /undo brings it back" in told(chat)
        await say(pilot, "/cut 1")
        await pilot.pause()
        assert branch(chat) == ["1?"]
        await pilot.press("ctrl+up", "u")
        await pilot.pause()
        assert branch(chat) == ["1?", "one"]
        await say(pilot, "/undo")
        await pilot.pause()
        assert branch(chat) == ["1?", "one", "2?", "two"]
        await say(pilot, "/redo")
        await pilot.pause()
        assert branch(chat) == ["1?", "one"]
        await say(pilot, "/delete")
        await pilot.pause()
        await say(pilot, "/undo")
        await pilot.pause()
        assert branch(chat) == ["1?", "one"]


async def test_a_message_is_pinned_under_the_cursor(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        await pilot.press("ctrl+up", "home", "p")
        await pilot.pause()
        assert [one.pinned for one in chat.session.branch] == [True, False]
        assert "pinned" in shown(chat)
        await pilot.press("p")
        await pilot.pause()
        assert [one.pinned for one in chat.session.branch] == [False, False]


async def test_while_an_answer_comes_the_tree_is_left_alone(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        engine.hold()
        await say(pilot, "2?")
        await until(pilot, lambda: chat.session.being_written is not None)
        for key in "erbdp":
            await pilot.press("ctrl+up", "home", key)
            await pilot.pause()
            assert "an answer is on its way" in told(chat)
            chat.clear_notifications()
        await pilot.press("c")
        assert chat.clipboard == "1?"
        engine.release()
        await idle(pilot)
    assert [one.text for one in chat.session.branch] == ["1?", "one", "2?", "two"]


async def test_a_message_longer_than_the_screen_is_read_through(tmp_path: Path) -> None:
    long = "\n\n".join(f"paragraph {number}" for number in range(60))
    chat = app(tmp_path, ScriptedEngine(long, "short"))
    async with chat.run_test(size=(80, 20)) as pilot:
        await talked(pilot, "1?", "2?")
        await pilot.press("ctrl+up", "home", "down")
        seen: list[str] = []
        for _ in range(40):
            seen.append(shown(chat))
            await pilot.press("down")
        assert all(any(f"paragraph {number}" in screen for screen in seen) for number in range(60))
        await pilot.press("c")
        assert chat.clipboard == "short"


CODE = "Two files:\n\n```python\nprint(1)\n```\n\nand\n\n```sh\necho 2\n```\n"


async def test_code_is_saved_and_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "code-1.py").write_text("mine")
    chat = app(tmp_path, ScriptedEngine(CODE))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        await pilot.press("ctrl+up", "s")
        await pilot.pause()
        assert "Save 2 blocks of code" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert (folder / "code-2.py").read_text() == "print(1)\n"
        assert (folder / "code-2-2.sh").read_text() == "echo 2\n"
        await pilot.press("s", *["backspace"] * 9, *"code-1.py", "enter")
        await pilot.pause()
        assert "is there already; choose another name" in told(chat)
        assert (folder / "code-1.py").read_text() == "mine"
        await pilot.press("home", "s")
        await pilot.pause()
        assert "there is no code in this message" in told(chat)


async def test_a_message_is_folded_and_shown_as_it_was_written(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("# Head\n\n**bold**\n\nend"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        await pilot.press("ctrl+up", "space")
        await pilot.pause()
        assert "▸ # Head … 5 lines" in shown(chat)
        assert "bold" not in shown(chat)
        await pilot.press("space", "o")
        await pilot.pause()
        assert "**bold**" in shown(chat)
        await pilot.press("o")
        await pilot.pause()
        assert "**bold**" not in shown(chat)
        assert "bold" in shown(chat)


async def test_thoughts_are_folded_when_the_answer_has_ended(tmp_path: Path) -> None:
    from tests.ui.tui.test_app import THINKING

    chat = app(tmp_path, ScriptedEngine("<think>Let me see.</think>Yes.", chat_template=THINKING))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        assert "Let me see." not in shown(chat)
        assert "▸ thought for" in shown(chat)
        assert "s · 26 tokens" in shown(chat)
        await pilot.press("ctrl+up", "up", "space")
        await pilot.pause()
        assert "⋮ Let me see." in shown(chat)


async def test_a_text_is_found_and_gone_to(tmp_path: Path) -> None:
    long = "\n\n".join(f"paragraph {number}" for number in range(60)) + "\n\nthe Needle, and a needle"
    chat = app(tmp_path, ScriptedEngine(long, "nothing", "a needle again"))
    async with chat.run_test(size=(80, 24)) as pilot:
        await talked(pilot, "1?", "2?", "3?")
        await pilot.press("ctrl+f", *"NEEDLE")
        await pilot.pause()
        assert "2 messages" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert "1 of 2 messages" in shown(chat)
        assert "the Needle" in shown(chat)
        strips = chat.screen._compositor.render_strips()
        (marked,) = [one.style for strip in strips for one in strip if one.text == "Needle"]
        assert marked is not None
        assert marked.color != marked.bgcolor
        await pilot.press("down")
        await pilot.pause()
        assert "2 of 2 messages" in shown(chat)
        assert "a needle again" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert "1 of 2 messages" in shown(chat)
        await pilot.press("up")
        await pilot.pause()
        assert "2 of 2 messages" in shown(chat)
        await pilot.press("escape")
        await pilot.press("c")
        assert chat.clipboard == "a needle again"
        await say(pilot, "/find paragraph 17")
        await pilot.press("enter")
        await pilot.pause()
        assert "paragraph 17" in shown(chat)
        assert "paragraph 40" not in shown(chat)
        await pilot.press("escape", "escape")
        await pilot.press("ctrl+f", "x", "y", "z", "enter")
        await pilot.pause()
        assert "0 messages" in shown(chat)


async def test_commands_count_messages_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chat = app(tmp_path, ScriptedEngine(CODE, "**two**", "three"))
    async with chat.run_test(size=(100, 60)) as pilot:
        await talked(pilot, "1?", "2?")
        await say(pilot, "/copy 2")
        assert chat.clipboard == "2?"
        await say(pilot, "/source 1")
        await until(pilot, lambda: "**two**" in shown(chat))
        await say(pilot, "/code 3 saved.py")
        await until(pilot, lambda: "Saved saved.py, saved-2.sh" in told(chat))
        assert (tmp_path / "saved.py").read_text() == "print(1)\n"
        await say(pilot, "/code")
        await until(pilot, lambda: "Save 2 blocks of code" in shown(chat))
        await pilot.press("escape")
        await say(pilot, "/retry 3")
        await idle(pilot)
        assert branch(chat) == ["1?", "three"]
        await say(pilot, "/tree 2")
        await until(pilot, lambda: branch(chat) == ["1?", CODE, "2?", "**two**"])
        await say(pilot, "/alternative 2 3")
        await until(pilot, lambda: branch(chat) == ["1?", "three"])


async def test_what_is_above_folds_and_unfolds_and_a_cut_answer_goes_on(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "1?")
        engine.hold()
        await say(pilot, "2?")
        engine.step(2)
        await until(pilot, lambda: "Tw" in shown(chat))
        await pilot.press("escape")
        await idle(pilot)
        engine.release()
        view = chat.chat_screen.transcript
        above = [one.id for one in chat.session.branch[:3]]
        await pilot.press("ctrl+up", "Z")
        assert [view.view_of(key) for key in above] == ["folded"] * 3
        await pilot.press("Z")
        assert [view.view_of(key) for key in above] == ["whole"] * 3
        await pilot.press("n")
        await idle(pilot)
        assert chat.session.branch[-1].text == "Twok"
