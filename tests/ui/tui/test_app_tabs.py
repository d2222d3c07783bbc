"""Several conversations open beside each other in the app: a row of tabs, what is kept of each, the next start."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Tab

from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_conversations import choose, filled

LONG = "\n\n".join(f"Paragraph {number}." for number in range(80))


def tabs(chat: ChatApp) -> list[str]:
    """What stands on the tabs, the one that is shown in brackets."""
    row = chat.chat_screen.tab_row
    if not row.display:
        return []
    return [f"[{tab.label_text}]" if tab.has_class("-active") else tab.label_text for tab in row.query(Tab)]


async def see(pilot: Pilot[int], chat: ChatApp, *wanted: str) -> None:
    """Wait until these are the tabs."""
    try:
        await until(pilot, lambda: tabs(chat) == list(wanted), 5)
    except AssertionError:
        assert tabs(chat) == list(wanted)


async def test_a_row_of_tabs_shows_when_several_are_open(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two", "three"))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("alt+n")
        assert "only one conversation is open" in told(chat)
        await say(pilot, "/open 3")
        await pilot.pause()
        assert tabs(chat) == []
        await choose(pilot, "two")
        await pilot.press("t")
        await see(pilot, chat, "one", "[two]")
        assert chat.focused is chat.chat_screen.composer
        assert [one.text for one in chat.session.branch] == ["two"]
        await say(pilot, "/tab 1")
        await see(pilot, chat, "one", "two", "[three]")
        await pilot.press("alt+n")
        await see(pilot, chat, "[one]", "two", "three")
        await pilot.press("alt+p", "alt+p")
        await see(pilot, chat, "one", "[two]", "three")
        await say(pilot, "/open 1")
        await see(pilot, chat, "one", "two", "[three]")
        await pilot.click(chat.chat_screen.tab_row.query(Tab).first())
        await see(pilot, chat, "[one]", "two", "three")
        assert [one.text for one in chat.session.branch] == ["one"]
        await pilot.press("alt+w")
        await see(pilot, chat, "[two]", "three")
        await say(pilot, "/close")
        await see(pilot, chat)
        assert [one.text for one in chat.session.branch] == ["three"]
        assert len(chat.session.store.list_conversations()) == 3


async def test_drafts_places_and_cursors_are_those_of_their_tabs(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(LONG, "short"))
    async with chat.run_test(size=(100, 30)) as pilot:
        screen = chat.chat_screen
        await say(pilot, "long?")
        await idle(pilot)
        screen.transcript.scroll_to(y=39, animate=False)
        await pilot.pause()
        there = screen.transcript.scroll_offset.y
        screen.composer.focus()
        await pilot.press(*"first draft", "left", "left")
        at = screen.composer.cursor_location
        screen.tabs.open_new("")
        await see(pilot, chat, "long?", "[New conversation]")
        assert screen.composer.text == ""
        await pilot.press(*"second")
        await pilot.press("alt+p")
        await see(pilot, chat, "[long?]", "New conversation")
        assert screen.composer.text == "first draft"
        assert screen.composer.cursor_location == at
        assert screen.transcript.scroll_offset.y == there
        await pilot.press("alt+n")
        await see(pilot, chat, "long?", "[New conversation]")
        assert screen.composer.text == "second"
        await pilot.press("enter")
        await idle(pilot)
        await see(pilot, chat, "long?", "[second]")


async def test_an_answer_goes_on_in_another_tab_which_shows_so(tmp_path: Path) -> None:
    engine = ScriptedEngine("half of it")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "go")
        engine.step(4)
        await until(pilot, lambda: "half" in shown(chat))
        screen = chat.chat_screen
        screen.tabs.open_new("")
        await see(pilot, chat, "go …", "[New conversation]")
        engine.release()
        await idle(pilot)
        await see(pilot, chat, "go", "[New conversation]")
        await pilot.press("alt+n")
        await until(pilot, lambda: "half of it" in shown(chat))


async def test_tabs_are_there_at_the_next_start(tmp_path: Path) -> None:
    first = app(tmp_path, store=filled(tmp_path, "one", "two", "three"))
    async with first.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/open 3")
        await say(pilot, "/tab 2")
        await say(pilot, "/tab 1")
        await pilot.press("alt+p")
        await see(pilot, first, "one", "[two]", "three")
        gone = first.session.store.list_conversations()[0].id
    first.session.store.delete(gone)
    first.session.store.close()
    second = app(tmp_path)
    async with second.run_test(size=(100, 30), notifications=True) as pilot:
        await see(pilot, second, "one", "[two]")
        assert [one.text for one in second.session.branch] == ["two"]
        await say(pilot, "/close")
        await see(pilot, second)
    second.session.store.close()
    for text in ("no json", '{"tabs": ["' + "x" * 300 + '", 5, "\\u001b[2J"], "shown": []}', "[]"):
        (tmp_path / "tabs.json").write_text(text, encoding="utf-8")
        third = app(tmp_path)
        async with third.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            assert third.session.conversation is None
            assert tabs(third) == []
        third.session.store.close()


async def test_the_tab_of_what_was_deleted_closes_and_says_so(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, "one", "two"))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, "/open 2")
        await say(pilot, "/tab 1")
        await see(pilot, chat, "one", "[two]")
        await choose(pilot, "one")
        await pilot.press("d", "delete")
        await see(pilot, chat)
        assert "“one” was deleted, so its tab is closed" in told(chat)
        assert [one.text for one in chat.session.branch] == ["two"]
        await say(pilot, "/undo")
        await pilot.pause()
        assert [one.text for one in chat.session.branch] == ["one"]


async def test_no_more_are_open_than_have_room(tmp_path: Path) -> None:
    chat = app(tmp_path, store=filled(tmp_path, *(f"c{number}" for number in range(22))))
    async with chat.run_test(size=(40, 20), notifications=True) as pilot:
        await say(pilot, "/open 1")
        for number in range(2, 22):
            await say(pilot, f"/tab {number}")
        await pilot.pause()
        assert "20 conversations are open" in told(chat)
        assert len(chat.services.tabs.idents) == 20
        assert all(len(line) <= 40 for line in shown(chat).splitlines())
