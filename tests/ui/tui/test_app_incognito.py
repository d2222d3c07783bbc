"""Conversations that are kept nowhere, beside those that are: what they leave behind, and the ways in and out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.chat import ChatScreen
from exlchat.ui.tui.screens.question import QuestionScreen
from tests.ui.app_harness import app, chat_app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_models import Models

MARKER = "xyzzyplugh"


def incognito(chat: ChatApp) -> ChatScreen:
    assert chat.incognito.screen is not None
    return chat.incognito.screen


async def go(pilot: Pilot[int]) -> ChatScreen:
    """Go to the conversations that are kept nowhere."""
    chat = chat_app(pilot)
    await say(pilot, "/incognito")
    await until(
        pilot,
        lambda: (
            chat.incognito.is_shown and incognito(chat).is_mounted and incognito(chat).query_one("#composer").has_focus
        ),
    )
    return incognito(chat)


async def say_there(pilot: Pilot[int], text: str) -> None:
    screen = incognito(chat_app(pilot))
    screen.composer.focus()
    screen.composer.set_text(text)
    await pilot.press("enter")
    await pilot.pause()


async def answered(pilot: Pilot[int], text: str) -> None:
    """Say something incognito and wait for the answer."""
    screen = incognito(chat_app(pilot))
    await say_there(pilot, text)
    await until(pilot, lambda: not screen.session.busy)


def bytes_on_disk(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for file in folder.rglob("*"):
        if file.is_file():
            yield file, file.read_bytes()


async def test_what_is_said_there_is_answered_and_stands_in_no_file(tmp_path: Path, home: Path) -> None:
    engine = ScriptedEngine("kept answer", f"answer {MARKER}", f"again {MARKER}")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "kept question")
        await idle(pilot)
        screen = await go(pilot)
        assert "nothing is kept" in shown(chat)
        assert "kept question" not in shown(chat).replace("kept conversations", "")
        await answered(pilot, f"question {MARKER}")
        assert f"answer {MARKER}" in shown(chat)
        assert not engine.requests[1].keep_pages
        await say_there(pilot, f"/nosuch {MARKER}")
        await say_there(pilot, f"/title {MARKER}")
        await say_there(pilot, "/tab")
        await until(pilot, lambda: len(screen.services.tabs.idents) == 2)
        await pilot.press(*f"draft {MARKER}")
        await pilot.press("alt+p")
        screen.tell(f"warned of {MARKER}", warning=True)
        await pilot.pause()
        found = [file for file, said in bytes_on_disk(tmp_path) if MARKER.encode() in said]
        assert found == []
        # What is kept goes on being kept.
        assert [one.title for one in chat.session.store.list_conversations()] == ["kept question"]
        assert b"kept question" in b"".join(said for _, said in bytes_on_disk(tmp_path))
    found = [file for file, said in bytes_on_disk(tmp_path) if MARKER.encode() in said]
    assert found == []


async def test_with_the_real_model_not_even_pages_of_the_cache_are_left(home: Path) -> None:
    chat = ChatApp(open_services(AppOptions(paths.bundled_model(), device="cpu")))
    async with chat.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        engine = chat.engine_jobs._engine
        # Reading a page is taken to be faster than computing it, so that all that may be written is.
        engine._parts.archive.note_prefill(1000, 1000.0)  # type: ignore[union-attr]
        screen = await go(pilot)
        await answered(pilot, f"{MARKER} " * 20)
        assert screen.session.branch[-1].role == "assistant"
        assert engine.cache_report().disk.written == 0  # type: ignore[union-attr]
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: not chat.incognito.is_shown)
        await say(pilot, "word " * 20)
        await until(pilot, lambda: not chat.session.busy)
        await until(pilot, lambda: engine.cache_report().disk.written == 1)  # type: ignore[union-attr]
        await say(pilot, "/quit")
        await say(pilot, "/quit")
    chat.services.close()
    assert [file for file, said in bytes_on_disk(home) if MARKER.encode() in said] == []


async def test_both_sides_stand_in_the_row_of_tabs_and_keys_go_between_them(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        screen = await go(pilot)
        await answered(pilot, "hidden?")
        row = next(line for line in shown(chat).splitlines() if "kept conversations" in line)
        assert "incognito: hidden?" in row
        await pilot.press("alt+n")
        await until(pilot, lambda: not chat.incognito.is_shown)
        assert "1?" in shown(chat)
        assert "hidden?" not in shown(chat)
        assert re.search(r"1\? +incognito", shown(chat))
        await pilot.press("alt+p")
        await until(pilot, lambda: chat.incognito.is_shown)
        assert "two" in shown(chat)
        assert screen.composer.has_focus
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: not chat.incognito.is_shown)
        assert chat.chat_screen.composer.has_focus


async def test_answers_on_both_sides_go_on_while_the_other_is_shown(tmp_path: Path) -> None:
    engine = ScriptedEngine("first answer", "second answer")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "1?")
        await until(pilot, lambda: chat.session.busy)
        screen = await go(pilot)
        await say_there(pilot, "2?")
        engine.release()
        await until(pilot, lambda: not screen.session.busy and not chat.session.busy)
        await until(pilot, lambda: "second answer" in shown(chat))
        assert "first answer" not in shown(chat)
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: "first answer" in shown(chat))
        assert "second answer" not in shown(chat)


async def test_closing_asks_once_and_then_nothing_is_left(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(120, 30)) as pilot:
        await go(pilot)
        await answered(pilot, "hidden?")
        await say_there(pilot, "/close")
        await until(pilot, lambda: isinstance(chat.screen, QuestionScreen))
        assert "Lose 2 messages; nothing brings them back" in shown(chat)
        await pilot.press("escape")
        await until(pilot, lambda: chat.incognito.is_shown and not isinstance(chat.screen, QuestionScreen))
        assert "one" in shown(chat)
        await say_there(pilot, "/close")
        await until(pilot, lambda: isinstance(chat.screen, QuestionScreen))
        await pilot.press("down", "enter")
        await until(pilot, lambda: chat.screen is chat.chat_screen)
        assert not chat.incognito.is_there
        assert "incognito" not in shown(chat)
        await go(pilot)
        assert "hidden?" not in shown(chat)
        await say_there(pilot, "/close")
        await until(pilot, lambda: chat.screen is chat.chat_screen)


async def test_quitting_says_once_what_will_be_lost(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await go(pilot)
        await answered(pilot, "hidden?")
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: not chat.incognito.is_shown)
        await say(pilot, "/quit")
        await until(pilot, lambda: "2 messages said incognito will be lost; quit again to lose them" in told(chat))
        assert chat.is_running
        await say(pilot, "/quit")
    assert chat.return_code == 0
    assert chat.not_kept is None


async def test_one_is_kept_on_purpose(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two", "three"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await say(pilot, "/keep")
        screen = await go(pilot)
        await answered(pilot, "kept after all?")
        await pilot.press(*"draft")
        await say_there(pilot, "/new")
        await answered(pilot, "hidden?")
        await say_there(pilot, "/open 2")
        await until(pilot, lambda: "kept after all?" in shown(chat))
        await say_there(pilot, "/keep")
        await until(pilot, lambda: chat.screen is chat.chat_screen)
        assert "kept after all?" in shown(chat)
        assert [one.title for one in screen.session.store.list_conversations()] == ["hidden?"]
    store = ConversationStore(tmp_path / "conversations.db")
    (kept,) = store.list_conversations()
    assert [(one.role, one.text) for one in store.load(kept.id).branch] == [
        ("user", "kept after all?"),
        ("assistant", "one"),
    ]
    assert store.load(kept.id).branch[-1].record is not None
    store.close()


async def test_the_last_one_that_is_kept_ends_it(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await go(pilot)
        await answered(pilot, "kept after all?")
        await say_there(pilot, "/keep")
        await until(pilot, lambda: chat.screen is chat.chat_screen and "kept after all?" in shown(chat))
        assert not chat.incognito.is_there
        await say(pilot, "/keep")
        await until(pilot, lambda: "this conversation is kept" in told(chat))
        await say(pilot, "2?")
        await idle(pilot)
        assert "two" in shown(chat)
        await say(pilot, "/quit")
    assert chat.return_code == 0


async def test_a_setting_and_a_theme_hold_on_both_sides(tmp_path: Path, home: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("call _this_", "and _that_"))
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        screen = await go(pilot)
        await answered(pilot, "2?")
        await say_there(pilot, "/settings underscores emphasis")
        await until(pilot, lambda: "and that" in shown(chat))
        await say_there(pilot, "/theme exlchat-light")
        await until(pilot, lambda: chat.theme == "exlchat-light")
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: "call this" in shown(chat))
        assert chat.chat_screen.background_colors[1] == screen.background_colors[1]


async def test_a_model_that_is_loaded_there_answers_on_both_sides(tmp_path: Path) -> None:
    models = Models(tmp_path)
    models.add("other", "by the other", "by the other again")
    chat = app(tmp_path, ScriptedEngine("one"), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        screen = await go(pilot)
        await say_there(pilot, "/model other")
        await until(pilot, lambda: screen.model.name == "other" and screen.model.info is not None)
        await answered(pilot, "2?")
        assert "by the other" in shown(chat)
        assert chat.chat_screen.model.name == "other"
        assert chat.session.defaults.model == screen.session.defaults.model == models.folder / "other"
        assert told(chat).count("other answers from here on") == 1
        await say_there(pilot, "/incognito")
        await until(pilot, lambda: chat.screen is chat.chat_screen)
        await say(pilot, "3?")
        await idle(pilot)
        assert "by the other again" in shown(chat)


async def test_where_nothing_is_kept_there_is_no_other_side(home: Path) -> None:
    chat = ChatApp(open_services(AppOptions(None, incognito=True)))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await say(pilot, "/incognito")
        await until(pilot, lambda: "nothing of this start is kept already" in told(chat))
        assert not chat.incognito.is_there
