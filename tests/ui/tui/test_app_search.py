"""Searching everything: rows of two lines, and going to the sentence itself."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from exlchat.app.chat.finding import ago
from exlchat.chat.plain_text import plain
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, say, shown, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_messages import talked

FILLING = "\n\n".join(f"Paragraph {number} of this answer says **nothing** of use." for number in range(60))
LONG = f"{FILLING}\n\nThe kettle holds **two litres** of water.\n\n{FILLING}\n\nA second kettle is blue.\n\n{FILLING}"


def marked(chat: ChatApp) -> list[str]:
    """The words that are marked in the transcript, as far as they are on the screen."""
    transcript = chat.chat_screen.transcript
    found = transcript._looks.found
    return [
        segment.text
        for row in range(transcript.window.height)
        for segment in transcript.render_line(row)
        if segment.style is not None
        and (segment.style.color, segment.style.bgcolor) == (found.color, found.bgcolor)
        and segment.text.strip()
    ]


async def searched(pilot: Pilot[int], chat: ChatApp, text: str) -> list[str]:
    """The rows of the list, once all is typed."""
    await pilot.press("f3", *text)
    await pilot.pause()
    return listed(chat)


def listed(chat: ChatApp) -> list[str]:
    return [str(option.prompt) for option in chat.screen.query_one("#pick-list", OptionList).options]


async def test_a_hit_has_two_lines_and_enter_goes_to_the_sentence(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(LONG))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "What is in the kitchen?")
        first = chat.session.conversation_id
        await pilot.press("ctrl+n")
        (row,) = await searched(pilot, chat, "kettle litre")
        title, excerpt = row.splitlines()
        assert "What is in the kitchen?" in title
        assert f"{datetime.date.today():%Y-%m-%d}" in title
        assert "The kettle holds two litres of water" in excerpt
        assert "**" not in excerpt
        for line in (title.strip(), "The kettle holds two litres of water"):
            assert line in shown(chat)
        await pilot.press("enter")
        await until(pilot, lambda: "The kettle holds two litres" in shown(chat))
        assert chat.session.conversation_id == first
        assert marked(chat) == ["kettle", "litre"] or marked(chat) == ["kettle", "litres"]
        await pilot.press("enter")
        await until(pilot, lambda: "A second kettle is blue" in shown(chat))
        assert "kettle" in marked(chat)
        await pilot.press("N")
        await until(pilot, lambda: "The kettle holds two litres" in shown(chat))
        await pilot.press("escape")
        await pilot.pause()
        assert marked(chat) == []


async def test_many_titles_leave_room_for_the_sentences(tmp_path: Path) -> None:
    """Of a hundred conversations each is found by its title, and shown by its sentence."""
    store = ConversationStore(tmp_path / "conversations.db")
    for number in range(100):
        one = store.create_conversation()
        store.add_message(one.id, "user", f"Sourdough bread, number {number}?")
        store.add_message(one.id, "assistant", f"{FILLING}\n\nThe sourdough bread of {number} is ready.\n\n{FILLING}")
    chat = app(tmp_path, ScriptedEngine(), store=store)
    async with chat.run_test(size=(100, 30)) as pilot:
        rows = await searched(pilot, chat, "sourdough bread")
        assert len(rows) >= 50
        assert not [row for row in rows if "in the title" in row]
        await pilot.press("enter")
        await until(pilot, lambda: {word.casefold() for word in marked(chat)} == {"sourdough", "bread"})


async def test_a_title_and_the_message_it_was_made_of_are_one_row(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Sure."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "Sourdough for two")
        (row,) = await searched(pilot, chat, "sourdough")
        assert row.count("Sourdough for two") == 2


async def test_a_title_of_its_own_is_found(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Sure."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "Hello")
        ident = chat.session.conversation_id
        assert ident is not None
        chat.session.store.rename(ident, "Zeppelin")
        await pilot.press("ctrl+n")
        (row,) = await searched(pilot, chat, "zepp")
        assert "in the title" in row
        await pilot.press("enter")
        await pilot.pause()
        assert chat.session.conversation_id == ident


async def test_old_conversations_are_found_by_their_day_and_by_a_tag(tmp_path: Path) -> None:
    long_ago = datetime.datetime(2024, 2, 29, 12).timestamp()
    times = [long_ago]
    store = ConversationStore(tmp_path / "conversations.db", clock=lambda: times[-1])
    old = store.create_conversation()
    store.add_message(old.id, "user", "About the leap day")
    times.append(time.time())
    new = store.create_conversation()
    store.add_message(new.id, "user", "About today")
    store.set_tags(new.id, ["work"])
    chat = app(tmp_path, ScriptedEngine(), store=store)
    async with chat.run_test(size=(100, 30)) as pilot:
        for typed, there, absent in (
            ("on:2024-02", "leap day", "About today"),
            ("on:2024-02-29 about", "leap day", "About today"),
            ("after:2024 about", "About today", "leap day"),
            ("before:2024-03-01", "leap day", "About today"),
            ("tag:work", "About today", "leap day"),
        ):
            await say(pilot, f"/search {typed}")
            await pilot.pause()
            rows = "\n".join(listed(chat))
            assert there in rows, typed
            assert absent not in rows, typed
            await pilot.press("escape")
        await say(pilot, "/search on:never")
        await pilot.pause()
        assert "is no day such as 2026-03-14" in shown(chat)


def test_an_excerpt_is_plain_text_with_its_marks_in_place() -> None:
    text = "## Head **water** `boils` at [100](https://x.y) and 2**3 stay *so* my_file 2*3"
    first = text.index("boils")
    shown = plain(text, [(first, first + 5)])
    assert shown.text == "Head water boils at 100 and 2**3 stay so my_file 2*3"
    assert [shown.text[a:b] for a, b in shown.marks] == ["boils"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("takes it, see [the manual](https://docs.python.org/3/howto/sort…", "takes it, see the manual…"),
        ("see [the manual](https://docs", "see the manual"),
        ("- [x] sorted - [ ] shuffled", "sorted shuffled"),
        ("an index a[0] and - 3 stay", "an index a[0] and - 3 stay"),
    ],
)
def test_what_an_excerpt_cuts_leaves_no_marks(text: str, shown: str) -> None:
    assert plain(text).text == shown


def test_how_long_ago() -> None:
    now = time.time()
    assert [ago(now - past, now) for past in (5, 300, 7300, 90000)] == ["just now", "5 min ago", "2 h ago", "1 d ago"]
    assert ago(datetime.datetime(2024, 2, 29, 12).timestamp(), now) == "2024-02-29"
