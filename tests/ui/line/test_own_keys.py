"""Keys of the registry and of the user's own in the line mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.key_binding.bindings.basic import load_basic_bindings
from prompt_toolkit.key_binding.bindings.emacs import load_emacs_bindings, load_emacs_search_bindings

from exlchat.app.commands.actions import ACTIONS
from exlchat.app.keys.keymap import Keymap, keymap
from exlchat.ui.line.own_keys import EDITING, line_keys, sequence_of
from tests.ui.line.harness import line_mode, plain_mode
from tests.ui.scripted_engine import ScriptedEngine

TAKEN_AWAY = {"ctrl+q", "ctrl+c", "ctrl+o", "escape", "enter", "alt+enter", "shift+enter", "ctrl+j", "up", "down"}
"""Keys that prompt_toolkit uses and the line mode uses for the same, or by its own choice."""


def used_by_editing() -> set[tuple[str, ...]]:
    loaded = (load_basic_bindings(), load_emacs_bindings(), load_emacs_search_bindings())
    return {
        tuple(str(getattr(key, "value", key)) for key in one.keys)
        for bindings in loaded
        for one in bindings.bindings
        if one.handler.__name__ != "_ignore"
    }


def own(**keys: tuple[str, ...]) -> Keymap:
    made = keymap(tuple((action.replace("_", "-"), names) for action, names in keys.items()))
    assert not made.problems
    return made


def test_what_editing_needs_is_what_prompt_toolkit_uses() -> None:
    used = used_by_editing()
    assert {name for name in EDITING if sequence_of(name) not in used} == set()
    bound = {one.name for one in line_keys(Keymap(), lambda _: True)} - TAKEN_AWAY
    assert {name for name in bound if sequence_of(name) in used} == set()


@pytest.mark.parametrize(
    ("name", "sequence"),
    [
        ("ctrl+t", ("c-t",)),
        ("alt+x", ("escape", "x")),
        ("alt+shift+x", ("escape", "X")),
        ("ctrl+alt+t", ("escape", "c-t")),
        ("alt+up", ("escape", "up")),
        ("ctrl+shift+up", ("c-s-up",)),
        ("f5", ("f5",)),
        ("alt+enter", ("escape", "c-m")),
        ("shift+enter", ("escape", "c-m")),
        ("shift+tab", ("s-tab",)),
        ("alt++", ("escape", "+")),
        ("ctrl+shift+t", None),
        ("ctrl+enter", None),
        ("shift+f5", None),
    ],
)
def test_names_of_keys_in_the_words_of_prompt_toolkit(name: str, sequence: tuple[str, ...] | None) -> None:
    assert sequence_of(name) == sequence


def test_every_key_of_the_registry_that_is_to_hold_can_be_bound() -> None:
    assert [one.name for one in line_keys(Keymap(), lambda _: True) if one.sequence is None] == []


async def test_keys_of_the_registry_hold_where_editing_does_not_need_them(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("One.", "Two.")) as line:
        await line.say("go")
        await line.idle()
        line.type("\x1bOS")  # f4
        await line.sees("Prompt by the format")
        line.type("\x1bOQ")  # f2
        await line.sees("/settings KEY tells more")
        line.type("\x1bOR")  # f3
        await line.until(lambda: line.message == "/search ")
        line.type("\x15")
        # Control and r searches what was typed, as in every shell; it is the key of retry in the app.
        line.type("\x12go")
        await line.until(lambda: line.screen.app.layout.has_focus("message") is False)
        line.type("\r")
        await line.until(lambda: line.message == "go")
        assert line.chat.session.branch[-1].text == "One."


async def test_a_key_of_ones_own_wins_over_editing(tmp_path: Path) -> None:
    keys = own(retry=("ctrl+r", "alt+r"), history=("alt+h",), new=("ctrl+t",), help=("f11",))
    async with line_mode(tmp_path, ScriptedEngine("One.", "Two.", "Three."), keys=keys) as line:
        await line.say("go")
        await line.idle()
        for typed, answer in (("\x12", "Two."), ("\x1br", "Three.")):
            line.type(typed)
            await line.sees(f"{answer}\n")
            await line.idle()
        line.type("\x1b[23~")  # f11
        await line.sees("  ctrl+r, alt+r: Have the last message answered again")
        shown = line.text
        assert "  ctrl+t: Start a new conversation. Without it, ctrl+t swaps two characters.\n" in shown
        assert "  f11: Show keys and commands.\n" in shown
        assert "Find what was typed before by a part of it" not in shown
        line.type("ab\x14")
        await line.sees("A new conversation begins.")


async def test_the_keys_of_the_message_change_places(tmp_path: Path) -> None:
    keys = own(send=("alt+enter",), new_line=("enter",), earlier_prompt=("alt+up", "alt+down"), stop=("alt+s",))
    engine = ScriptedEngine("A long story")
    engine.hold()
    async with line_mode(tmp_path, engine, keys=keys) as line:
        line.type("one\rtwo")
        await line.until(lambda: line.message == "one\ntwo")
        line.type("\x1b\r")
        await line.until(lambda: len(line.chat.session.branch) > 0)
        assert line.chat.session.branch[0].text == "one\ntwo"
        engine.step(3)
        await line.until(lambda: "A l" in line.out.getvalue())
        line.type("\x1bs")
        await line.sees("(stopped · /continue goes on)")
        line.type("\x1b\x1b[A")
        await line.until(lambda: line.message == "one\ntwo")
        line.type("\x1b\x1b[B")
        await line.until(lambda: line.message == "")


async def test_keys_that_are_set_hold_at_once_and_one_that_cannot_be_told_is_named(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("One.", "Two.")) as line:
        await line.say("go")
        await line.idle()
        line.chat.submit("/settings keys.retry f12")
        await line.sees("keys.retry = f12; it holds now")
        line.type("\x1b[24~")
        await line.sees("Two.\n")
        line.chat.submit("/settings keys.stats ctrl+t")
        await line.sees("keys.stats")
        line.chat.submit("/settings keys.new ctrl+shift+t")
        await line.sees("keys.new: ctrl+shift+t cannot be told from other keys in the line mode")


async def test_plain_lines_name_the_keys_that_the_terminal_leaves_them(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        plain.type("/help\n")
        await plain.sees("  ctrl+d: Quit, on an empty line.\nCommands\n")
        await plain.sees("//text")
        assert "f4" not in plain.text
        for action in ACTIONS:
            assert action.slash is None or f"  {action.usage}: " in plain.text
