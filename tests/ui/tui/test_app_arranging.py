"""Conversations are put in order inside the app: by commands, and by keys on the list, one or several at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from exlchat.app.chat.list_order import folder_of
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.headless.conversation import AskedPrompt, begin
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.question import QuestionScreen
from tests.ui.app_harness import app, say, shown, told
from tests.ui.tui.test_app_conversations import choose, filled, listed


def store_of(chat: ChatApp) -> ConversationStore:
    return chat.session.store


def rows(chat: ChatApp) -> list[str]:
    """All of the list with its headings, top to bottom."""
    return [text for option in chat.chat_screen.sidebar.options if (text := str(option.prompt).strip("▌● "))]


def highlight(chat: ChatApp, title: str) -> None:
    """Put the cursor of the list, which has the focus, on a conversation."""
    (wanted,) = (one.id for one in store_of(chat).list_conversations() if one.title == title)
    sidebar = chat.chat_screen.sidebar
    sidebar.highlighted = [option.id for option in sidebar.options].index(wanted)


async def typed(pilot: Pilot[int], text: str) -> None:
    await pilot.pause()
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


async def test_tags_folder_top_and_archive_by_commands(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two", "three"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "two")
        await pilot.press("enter")
        await say(pilot, "/tag work #later")
        await say(pilot, "/folder Letters")
        await pilot.pause()
        assert rows(chat)[:2] == ["Letters/", "two #later #work"]
        await say(pilot, "/tag -later")
        await say(pilot, "/folder -")
        await say(pilot, "/ontop")
        await pilot.pause()
        assert rows(chat)[:2] == ["On top", "two #work"]
        await say(pilot, "/ontop off")
        await say(pilot, "/archive")
        await pilot.pause()
        assert not any("two" in row for row in rows(chat))
        await say(pilot, "/archived")
        await pilot.pause()
        assert "two" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        await say(pilot, "/archive off")
        await pilot.pause()
        assert any(row == "two #work" for row in rows(chat))


async def test_open_counts_as_the_list_does_and_the_last_one_is_the_one_written_last(tmp_path: Path) -> None:
    store = filled(tmp_path, "one", "two", "three", "four")
    idents = {one.title: one.id for one in store.list_conversations()}
    store.pin_conversation(idents["one"], True)
    store.set_tags(idents["two"], ["Letters/"])
    chat = app(tmp_path, store=store, continue_last=True)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.pause()
        assert chat.session.conversation_id == idents["four"]
        assert listed(chat) == ["one", "two", "four", "three"]
        for number, title in enumerate(["one", "two", "four", "three"], 1):
            await say(pilot, f"/open {number}")
            await pilot.pause()
            assert chat.session.conversation_id == idents[title]


async def test_what_was_asked_from_the_shell_is_folded_at_the_end_of_the_list(tmp_path: Path) -> None:
    store = filled(tmp_path, "typed here")
    for number in range(30):
        begin(store, AskedPrompt(f"script {number}"))
    chat = app(tmp_path, store=store)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("ctrl+b")
        assert [row for row in rows(chat) if row != "Today"] == ["typed here", "▸ asked from the shell (30)"]
        await pilot.press("end", "d", "space", "enter")
        await pilot.pause()
        assert rows(chat)[2:5] == ["▾ asked from the shell (30)", "script 29", "script 28"]
        await pilot.press("down", "enter")
        await pilot.pause()
        assert [one.text for one in chat.session.branch] == ["script 29"]
        await say(pilot, "/undo")
        await pilot.pause()
        assert folder_of(store.tags(chat.session.require_open())) == "asked"
        await pilot.press("ctrl+b")
        sidebar = chat.chat_screen.sidebar
        sidebar.highlighted = [option.id for option in sidebar.options].index("fold")
        await pilot.press("enter")
        await pilot.pause()
        assert rows(chat)[1:] == ["typed here", "▸ asked from the shell (30)", "script 29"]
        await say(pilot, "/folder -")
        await pilot.pause()
        assert rows(chat)[-1] == "▸ asked from the shell (29)"
        assert len(store.list_conversations()) == 31


async def test_several_are_marked_and_one_undo_brings_all_back(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two", "three"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        await pilot.press("space")
        highlight(chat, "three")
        await pilot.press("space", "g")
        await typed(pilot, "work")
        assert {one.title: one.tags for one in store_of(chat).list_conversations()} == {
            "one": ("work",),
            "two": (),
            "three": ("work",),
        }
        await pilot.press("x")
        await typed(pilot, str(tmp_path / "out.md"))
        text = (tmp_path / "out.md").read_text(encoding="utf-8")
        assert "one" in text
        assert "three" in text
        chat.clear_notifications()
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(chat.screen, QuestionScreen)
        assert "Delete 2 conversations?" in shown(chat)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert listed(chat) == ["two"]
        assert told(chat) == "Deleted 2 conversations; /undo brings them back"
        await say(pilot, "/undo")
        await pilot.pause()
        assert len(listed(chat)) == 3


async def test_a_conversation_that_goes_while_the_question_is_open_is_one_line(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        await pilot.press("d")
        await pilot.pause()
        other = ConversationStore(tmp_path / "conversations.db")
        (ident,) = (one.id for one in other.list_conversations() if one.title == "one")
        other.delete(ident)
        other.purge_deleted()
        other.close()
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "there is no conversation" in told(chat) or "is not there" in told(chat) or "removed" in told(chat)
        assert listed(chat) == ["two"]


async def test_too_much_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        await pilot.press("enter")
        await say(pilot, "/tag keep")
        await say(pilot, "/tag " + " ".join(f"t{number}" for number in range(10_000)))
        await pilot.pause()
        assert "100 tags at most" in told(chat)
        (one,) = store_of(chat).list_conversations()
        assert one.tags == ("keep",)
        await say(pilot, "/rename " + "x" * 1_000_000)
        await pilot.pause()
        (one,) = store_of(chat).list_conversations()
        assert 0 < len(one.title) < 200
        await say(pilot, f"/import {tmp_path / 'nothing.json'}")
        await pilot.pause()
        assert "nothing.json" in told(chat)


async def test_what_was_exported_is_imported(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        await pilot.press("x")
        await typed(pilot, str(tmp_path / "out.jsonl"))
        highlight(chat, "one")
        await pilot.press("d", "delete")
        await pilot.pause()
        assert listed(chat) == []
        await say(pilot, f"/import {tmp_path / 'out.jsonl'}")
        await pilot.pause()
        assert listed(chat) == ["one"]
        assert [one.text for one in chat.session.branch] == ["one"]


async def test_a_command_is_no_draft_of_what_it_exports(tmp_path: Path) -> None:
    """Who types slowly has it kept as one."""
    store = filled(tmp_path, "one")
    ident, out = store.list_conversations()[0].id, tmp_path / "out.jsonl"
    chat = app(tmp_path, store=store)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        screen = chat.chat_screen
        screen.open_conversation(ident)
        screen.composer.set_text(f"/export {out}")
        screen.unsent.keep()
        assert store.draft(ident)
        await say(pilot, f"/export {out}")
        await pilot.pause()
        assert out.name not in out.read_text(encoding="utf-8")
        assert store.draft(ident) == ""


@pytest.mark.parametrize(("key", "text"), [("g", "batch -old"), ("f", "Letters"), ("p", ""), ("a", "")])
async def test_what_was_done_to_several_is_taken_back_at_once(tmp_path: Path, key: str, text: str) -> None:
    store = filled(tmp_path, "one", "two", "three")
    idents = {one.title: one.id for one in store.list_conversations()}
    store.set_tags(idents["two"], ["old"])
    store.pin_conversation(idents["two"], True)
    chat = app(tmp_path, store=store)

    def state() -> dict[str, tuple[tuple[str, ...], bool, bool]]:
        there = [*store.list_conversations(), *store.list_conversations("archived")]
        return {one.title: (one.tags, one.pinned, one.archived) for one in there}

    before = state()
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await choose(pilot, "one")
        for title in ("one", "two", "three"):
            highlight(chat, title)
            await pilot.press("space")
        await pilot.press(key)
        if text:
            await typed(pilot, text)
        await pilot.pause()
        assert all(state()[title] != before[title] for title in ("one", "three"))
        if not chat.chat_screen.sidebar.has_focus:
            await pilot.press("ctrl+b")
        await pilot.press("u")
        await pilot.pause()
        assert state() == before
        assert "of 3 conversations are as they were" in told(chat)
