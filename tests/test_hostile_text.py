"""What strangers wrote never reaches the terminal as it is: in the app, the line modes, and commands that list."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from tests.hostile import HOSTILE, NAME, furnish, harm_in, on_a_terminal
from tests.ui.line.harness import line_mode, plain_mode
from tests.ui.scripted_engine import ScriptedEngine

COMMANDS = (
    "/open",
    "/open 1",
    "/model",
    "/models",
    "/persona",
    "/persona stranger",
    "/group stranger narrator",
    "/group",
    "/speak Narrator",
    f"/note {HOSTILE}",
    "/note",
    "/sampling",
    "/preset",
    "/preset stranger",
    "/template",
    f"/template {NAME}",
    f"/theme {NAME}",
    f"/model {NAME}",
    f"/rename {HOSTILE}",
    "/theme stranger",
    "/stats",
    "/cache",
    "/cost",
    f"/{NAME}",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    furnish(tmp_path)
    return tmp_path


def test_the_whole_app_shows_hostile_text_and_obeys_none_of_it(home: Path) -> None:
    code, raw = on_a_terminal([sys.executable, "-m", "tests.hostile_walk", str(home)], {"EXLCHAT_HOME": str(home)})
    assert json.loads((home / "problems.json").read_text()) == []
    assert code == 0
    assert harm_in(raw) == []


async def test_the_line_mode_obeys_none_of_it(home: Path) -> None:
    store = ConversationStore(home / "data" / "conversations.db")
    engine = ScriptedEngine(HOSTILE, HOSTILE, name=HOSTILE)
    async with line_mode(home, engine, store=store, notices=(HOSTILE,), size=(40, 12)) as line:
        await line.idle()
        for command in (HOSTILE, *COMMANDS):
            line.chat.submit(command)
            await line.idle()
        await line.sees("/model NAME loads")
    assert harm_in(line.out.getvalue().replace("\b", "").encode()) == []
    assert line.text.count("hostile") > 20


async def test_plain_lines_obey_none_of_it(home: Path) -> None:
    store = ConversationStore(home / "data" / "conversations.db")
    engine = ScriptedEngine(HOSTILE, HOSTILE, name=HOSTILE)
    async with plain_mode(home, engine, store=store, notices=(HOSTILE,)) as plain:
        await plain.idle()
        for command in (HOSTILE, *COMMANDS):
            plain.chat.submit(command)
            await plain.idle()
        await plain.sees("/model NAME loads")
    assert harm_in(plain.text.encode()) == []
    assert plain.text.count("hostile") > 20


@pytest.mark.parametrize(
    "command",
    [
        "sessions list",
        "sessions show talk0",
        "sessions search where",
        "personas list",
        "personas show stranger",
        "presets list",
        "presets show stranger",
        "themes",
        "models",
    ],
)
def test_a_command_on_a_terminal_obeys_none_of_it(home: Path, command: str) -> None:
    _, raw = on_a_terminal([sys.executable, "-m", "exlchat", *command.split()], {"EXLCHAT_HOME": str(home)})
    assert harm_in(raw) == []
    assert b"hostile" in raw or b"evil" in raw
