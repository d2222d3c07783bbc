"""What nobody types by hand: ten thousand tags, a title of a megabyte, typed or written by another program."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

TAGS = [f"t{number}" for number in range(10_000)]
TITLE = "long title " * 100_000


async def test_ten_thousand_tags_are_one_line_and_stay_typed(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        await say(pilot, f"/tag {' '.join(TAGS)}")
        await pilot.pause()
        assert chat.session.conversation_id is not None
        assert not chat.session.store.tags(chat.session.conversation_id)
        assert told(chat).splitlines()[-1] == "a conversation has 100 tags at most; these are 10,000"
        assert TAGS[-1] in shown(chat)


async def test_a_title_of_a_megabyte_is_a_short_one(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        await say(pilot, f"/rename {TITLE}")
        await pilot.pause()
        (summary,) = chat.session.store.list_conversations()
        assert summary.title.startswith("long title long title")
        assert len(summary.title) < 100
        assert "long title long title" in shown(chat)
        assert told(chat) == "The title is cut: one is a line of 60 characters at most"


async def test_a_title_that_is_kept_whole_is_not_spoken_of(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        await say(pilot, f"/rename {'x' * 60}")
        await pilot.pause()
        (summary,) = chat.session.store.list_conversations()
        assert summary.title == "x" * 60
        assert told(chat) == ""


async def test_what_another_program_wrote_without_bounds_is_listed_and_the_chat_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exlchat.app.chat.elsewhere.LOOK_SECONDS", 0.05)
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        ident = chat.session.conversation_id
        with closing(sqlite3.connect(chat.session.store.path)) as other, other:
            other.execute("UPDATE conversation SET title = ? WHERE id = ?", (TITLE, ident))
            other.executemany("INSERT INTO tag (conversation_id, name) VALUES (?, ?)", [(ident, tag) for tag in TAGS])
        await until(pilot, lambda: "long title long title" in shown(chat))
        await say(pilot, "2?")
        await idle(pilot)
        assert "two" in shown(chat)
