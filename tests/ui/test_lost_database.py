"""The database is removed under a running chat: the text stays in hand, and /save keeps it, in every mode."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat.chat.exchange.reading import read
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE
from tests.ui.app_harness import app, idle, say, told, until
from tests.ui.line.harness import line_mode, plain_mode
from tests.ui.line.harness import until as line_until
from tests.ui.scripted_engine import ScriptedEngine


def texts(path: Path) -> list[list[str]]:
    with closing(ConversationStore(path)) as store:
        assert store.check() == []
        return [[one.text for one in store.load(row.id).branch] for row in store.list_conversations()]


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    ConversationStore(path.with_name("other.db")).close()
    path.with_name("other.db").rename(path)


async def lost(pilot: Pilot[int], chat: ChatApp, lose: Callable[[Path], None]) -> Path:
    """A conversation of two messages whose database is lost; the next message has come back."""
    path = chat.session.store.path
    assert path is not None
    await until(pilot, lambda: chat.chat_screen.model.info is not None)
    await say(pilot, "first")
    await idle(pilot)
    lose(path)
    await say(pilot, "second")
    await until(pilot, lambda: "Not sent: " in told(chat))
    assert "while it was open" in told(chat)
    assert chat.chat_screen.composer.text == "second"
    return path


@pytest.mark.parametrize("lose", [remove, replace])
async def test_the_app_keeps_the_text_and_goes_on_in_a_new_database(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        path = await lost(pilot, chat, lose)
        assert chat.chat_screen.commands.run("save")
        await until(pilot, lambda: f"This conversation goes on in {path}" in told(chat))
        assert chat.chat_screen.composer.text == "second"
        await pilot.press("enter")
        await until(pilot, lambda: len(chat.session.branch) == 4)
        await idle(pilot)
        assert texts(path) == [["first", "one", "second", "two"]]


async def test_what_is_typed_is_not_lost_by_one_quit_and_two_say_so(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        await lost(pilot, chat, remove)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: "quit again to lose it" in told(chat))
        assert chat.is_running
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not chat.is_running)
    assert "removed" in (chat.not_kept or "")


async def test_an_answer_that_grows_meanwhile_is_saved_with_its_conversation(tmp_path: Path) -> None:
    engine = ScriptedEngine("a long answer")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(140, 30), notifications=True) as pilot:
        path = chat.session.store.path
        assert path is not None
        await say(pilot, "first")
        await until(pilot, lambda: chat.session.being_written is not None)
        path.unlink()
        engine.release()
        await until(pilot, lambda: "the answer is not on disk" in told(chat))
        assert chat.chat_screen.commands.run("save", str(tmp_path / "kept.jsonl"))
        (tree,) = read(tmp_path / "kept.jsonl").trees
        assert [one.text for one in tree.messages] == ["first", "a long answer"]
        assert chat.chat_screen.commands.run("save")
        assert texts(path) == [["first", "a long answer"]]


async def test_the_line_mode_keeps_the_text(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("one", "two")) as line:
        path = line.chat.session.store.path
        assert path is not None
        await line.idle()
        await line.say("first")
        await line.sees("one")
        await line.idle()
        path.unlink()
        await line.say("second")
        await line.sees("Not sent:")
        assert line.message == "second"
        assert line.chat.commands.run("save")
        await line.sees("This conversation goes on in")
        line.type("\r")
        await line.sees("two")
        await line.idle()
        assert texts(path) == [["first", "one", "second", "two"]]


async def test_plain_lines_keep_the_text(tmp_path: Path) -> None:
    async with plain_mode(tmp_path, ScriptedEngine("one", "two")) as plain:
        path = plain.chat.session.store.path
        assert path is not None
        await plain.idle()
        plain.type("first\n")
        await plain.sees("one\nYou: ")
        path.unlink()
        plain.type("second\n")
        await plain.sees("Not sent: ")
        await line_until(lambda: plain.chat.console.typed() == "second")
        plain.type("/save\n")
        await plain.sees("This conversation goes on in")
    (conversation,) = texts(path)
    assert conversation == ["first", "one"]
    with closing(ConversationStore(path)) as store:
        assert store.draft(store.list_conversations()[0].id) == "second"


def test_ask_prints_the_answer_and_does_not_end_as_if_it_were_kept(tmp_path: Path) -> None:
    model = save_endless_llama(tmp_path / "endless")
    command = [sys.executable, "-m", "exlchat", "ask", "-m", str(model), "--temperature", "0", "--max-tokens", "2000"]
    asked = subprocess.Popen(
        [*command, "go"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "EXLCHAT_HOME": str(tmp_path / "home")},
    )
    assert asked.stdout is not None
    begun = asked.stdout.read(1)
    (tmp_path / "home" / "data" / "conversations.db").unlink()
    out, err = asked.communicate(timeout=PATIENCE * 4)
    assert len(begun + out) > 1000
    assert asked.returncode == 1
    (line,) = [one for one in err.decode().splitlines() if "not on disk" in one]
    assert "conversations.db: was removed" in line
