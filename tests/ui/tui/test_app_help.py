"""F1: what can be done, grouped, and found by the words that are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from exlchat.app.commands.actions import BY_NAME
from exlchat.ui.tui.screens.help import HelpScreen, found_rows, help_rows
from tests.ui.app_harness import app, shown, until
from tests.ui.scripted_engine import ScriptedEngine


async def test_help_begins_with_what_nobody_can_do_without(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine())
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: "Send the message." in shown(chat))
        lines = [line.strip(" │") for line in shown(chat).splitlines()]
        first = next(place for place, line in enumerate(lines) if line.startswith("First of all"))
        assert "Send the message." in lines[first + 1]
        await pilot.press("escape")
        assert not isinstance(chat.screen, HelpScreen)


async def test_help_is_searched_as_one_types(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine())
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("f1", *"undo dele")
        screen = shown(chat)
        assert "Delete this conversation; /undo brings it back." in screen
        assert "Send the message." not in screen
        chat.screen.query_one(Input).value = ""
        await pilot.press(*"qqq")
        assert "Nothing has these words" in shown(chat)
        chat.screen.query_one(Input).value = ""
        await pilot.pause()
        await pilot.press("pagedown", "pagedown")
        assert "First of all" not in shown(chat)
        await pilot.press("f1")
        assert not isinstance(chat.screen, HelpScreen)


@pytest.mark.parametrize(
    ("typed", "said"), [("gguf", "GGUF"), ("context shift", "--context-policy"), ("num_ctx", "--context")]
)
async def test_what_is_no_key_and_no_command_is_looked_up_among_the_facts(
    tmp_path: Path, typed: str, said: str
) -> None:
    chat = app(tmp_path, ScriptedEngine())
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("f1", *typed)
        await until(pilot, lambda: "The guide says" in shown(chat))
        assert said in shown(chat)
        assert "docs/" in shown(chat)


@pytest.mark.parametrize("typed", ["CODE save", "code", "models"])
def test_what_is_found_has_all_words_and_stands_below_its_heading(typed: str) -> None:
    found = found_rows(help_rows(), typed)
    assert not found[0][1]
    heading = ""
    for left, right in found:
        heading = heading if right else left
        assert not right or all(word in f"{heading} {left} {right}".lower() for word in typed.lower().split())


@pytest.mark.parametrize("alias", ["/bye", "regenerate", "/fork", "/sysprompt", "character"])
def test_a_command_is_found_by_the_names_that_other_programs_have(alias: str) -> None:
    named = next(action for name, action in BY_NAME.items() if name.lstrip("/") == alias.lstrip("/"))
    assert any(named.usage in left for left, _ in found_rows(help_rows(), alias))


def test_everything_is_listed_once_in_its_topic_or_place() -> None:
    rows = [row for row in help_rows() if row[1]]
    assert len(rows) == len(set(rows)) > 80
