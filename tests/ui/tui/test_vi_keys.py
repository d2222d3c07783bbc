"""vi's keys in the composer: what they do by the book, and where they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.config.schema import Settings
from exlchat.ui.tui.vi_keys import ViKeys, ViText
from tests.ui.app_harness import app, idle, say, shown, until
from tests.ui.scripted_engine import ScriptedEngine


def pressed(text: str, cursor: int, keys: str) -> tuple[ViText, ViKeys]:
    vi = ViKeys()
    vi.escape(text, 0)
    now = ViText(text, cursor, cursor)
    for key in keys:
        now = vi.press(key, now.text, now.cursor)
    return now, vi


@pytest.mark.parametrize(
    ("text", "cursor", "keys", "after", "at"),
    [
        ("hello world", 0, "dw", "world", 0),
        ("a b c d", 0, "2dw", "c d", 0),
        ("one\ntwo\nthree", 5, "dd", "one\nthree", 4),
        ("one\ntwo", 0, "ddp", "two\none", 4),
        ("one\ntwo", 0, "yyP", "one\none\ntwo", 0),
        ("hello", 4, "x", "hell", 3),
        ("say (a b) now", 6, "di(", "say () now", 5),
        ('say "a b" now', 6, 'da"', "say  now", 4),
        ("foo bar", 0, "fbx", "foo ar", 4),
        ("one\ntwo", 0, "J", "one two", 3),
        ("ab", 0, "~", "Ab", 1),
        ("abc", 1, "rX", "aXc", 1),
        ("one two", 0, "vex", " two", 0),
        ("one\ntwo\nthree", 0, "Vjd", "three", 0),
        ("one\ntwo", 5, "gg", "one\ntwo", 0),
        ("one two three", 8, "bD", "one ", 3),
        ("a b c", 0, "wwdgg", "", 0),
    ],
)
def test_commands_do_what_vi_does(text: str, cursor: int, keys: str, after: str, at: int) -> None:
    now, vi = pressed(text, cursor, keys)
    assert (now.text, now.cursor) == (after, at)
    assert vi.mode == "NORMAL"
    assert not vi.pending


@pytest.mark.parametrize(
    ("keys", "at"), [("i", 2), ("a", 3), ("I", 0), ("A", 5), ("o", 6), ("O", 0), ("S", 0), ("C", 2)]
)
def test_commands_that_begin_to_insert(keys: str, at: int) -> None:
    now, vi = pressed("hello", 2, keys)
    assert vi.inserting
    assert now.cursor == at


def test_a_selection_holds_the_character_under_the_cursor() -> None:
    now, vi = pressed("one two", 4, "ve")
    assert (now.anchor, now.cursor, vi.mode) == (4, 7, "VISUAL")
    now, _ = pressed("one two", 4, "vb")
    assert (now.cursor, now.anchor) == (0, 5)


@pytest.mark.parametrize("keys", ["d", "2", "g", "f", "v", "c2i"])
def test_escape_gives_up_what_has_begun(keys: str) -> None:
    now, vi = pressed("one two", 0, keys)
    assert vi.pending
    now = vi.escape(now.text, now.cursor)
    assert (now.text, vi.pending, vi.mode) == ("one two", False, "NORMAL")


@given(st.text("ab \n(.", max_size=12), st.integers(0, 12), st.text("dwbxiaoOpPyvVjk0$GgfJrc2~ha)\x1b", max_size=12))
def test_any_keys_leave_a_text_and_a_place_in_it(text: str, cursor: int, keys: str) -> None:
    vi = ViKeys()
    now = vi.escape(text, min(cursor, len(text)))
    for key in keys:
        before = now.text
        now = vi.escape(now.text, now.cursor) if key == "\x1b" or vi.inserting else vi.press(key, now.text, now.cursor)
        assert 0 <= now.cursor <= len(now.text)
        assert 0 <= now.anchor <= len(now.text)
        start, end, piece = now.difference(before)
        assert before[:start] + piece + before[end:] == now.text


async def test_the_composer_takes_them_where_they_are_wanted(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."), settings=Settings(temperature=0.0, editing="vi"))
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        await pilot.press(*"hello brave world", "escape")
        await until(pilot, lambda: "NORMAL" in shown(chat))
        await pilot.press(*"bdb", "i", *"new ")
        assert composer.text == "hello new world"
        await pilot.press("escape", "u")
        assert composer.text == "hello world"
        await pilot.press("v", "e")
        assert "VISUAL" in shown(chat)
        assert composer.selected_text
        await pilot.press("escape", "enter")
        await idle(pilot)
        assert chat.session.branch[0].text == "hello world"
        assert "NORMAL" not in shown(chat)
        await pilot.press("x")
        assert composer.text == "x"


async def test_in_normal_mode_k_goes_back_and_escape_still_stops(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "A long answer")
    chat = app(tmp_path, engine, settings=Settings(temperature=0.0, editing="vi"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "first")
        await idle(pilot)
        await pilot.press(*"draft", "escape", "k")
        assert chat.chat_screen.composer.text == "first"
        await pilot.press("j")
        assert chat.chat_screen.composer.text == "draft"
        engine.hold()
        await say(pilot, "second")
        engine.step(3)
        await until(pilot, lambda: "A l" in shown(chat))
        await pilot.press("escape")
        assert chat.session.being_written is not None
        await pilot.press("escape")
        await idle(pilot)
        assert chat.session.branch[-1].status == "partial"


async def test_without_the_setting_letters_are_letters(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"ab", "escape", "d", "d")
        assert chat.chat_screen.composer.text == "abdd"
        chat.chat_screen.composer.use_vi(True)
        await pilot.press("escape", "d", "d")
        assert chat.chat_screen.composer.text == ""
