"""A group chat and an author's note in lines: names stand over answers, in plain lines before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat import paths
from tests.ui.line.harness import line_mode
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def friends(home: Path) -> None:
    folder = paths.folders().personas
    folder.mkdir(parents=True)
    (folder / "ada.toml").write_text('name = "Ada"\nsystem = "x"\ngreeting = "Come in."\n')
    (folder / "ben.toml").write_text('name = "Ben"\nsystem = "x"\n')


async def test_a_group_speaks_under_its_names(tmp_path: Path) -> None:
    engine = ScriptedEngine("Cold.", "Warm.")
    async with line_mode(tmp_path, engine) as line:
        await line.say("/group ada ben")
        await line.sees("Ada:\nCome in.\n")
        await line.sees("Ada, Ben speak from here on")
        await line.say("Is it cold, Ben?")
        await line.sees("Ben:\nCold.\n")
        await line.idle()
        assert "· Ada, Ben" in line.screen._below()
        await line.say("/speak Ada")
        await line.sees("Ada:\nWarm.\n")
        await line.idle()
        await line.say("/group")
        await line.sees("Group: Ada, Ben; whoever is named speaks, else by turn, Ben next")
        await line.say("/group by choice")
        await line.say("Who now?")
        await line.sees("you choose who speaks in this group, one of Ada, Ben: /speak NAME")
        await line.say("/sampling")
        await line.sees("group: Ada, Ben · whoever you choose speaks (conversation)")


async def test_a_note_is_set_and_shown(tmp_path: Path) -> None:
    engine = ScriptedEngine("Cold.")
    async with line_mode(tmp_path, engine) as line:
        await line.say("/note It rains.")
        await line.sees("The author's note stands 4 messages before the end now, in every prompt")
        await line.say("Hi.")
        await line.sees("Cold.")
        await line.idle()
        assert "It rains.\n\nHi." in engine.prompts[-1]
        await line.say("/note")
        await line.sees("before the end: It rains.")
