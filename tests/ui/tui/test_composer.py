"""Typing: what sends, what makes a new line, what is recalled, what is offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.pilot import Pilot

from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.terminal_keys import tell_alt_enter_from_enter
from tests.patience import within
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


def keys_of(sequence: str) -> list[str]:
    """The keys Textual makes of what a terminal sends."""
    parser = XTermParser()
    seen = [*parser.feed(sequence), *parser.tick()]
    return [event.key for event in seen if isinstance(event, events.Key)]


async def send_sequence(pilot: Pilot[int], sequence: str) -> None:
    """Have the app read bytes as if the terminal had sent them."""
    parser = XTermParser()
    for event in [*parser.feed(sequence), *parser.tick()]:
        pilot.app.post_message(event)
    await pilot.pause()
    await pilot.pause()


@pytest.mark.parametrize(
    ("name", "sequence"),
    [
        ("shift+enter, kitty", "\x1b[13;2u"),
        ("alt+enter, kitty", "\x1b[13;3u"),
        ("alt+enter, legacy", "\x1b\r"),
        ("ctrl+j", "\n"),
        ("shift+enter, modifyOtherKeys", "\x1b[27;2;13~"),
        ("alt+enter, modifyOtherKeys", "\x1b[27;3;13~"),
    ],
)
async def test_every_form_of_a_new_line_makes_one_and_sends_nothing(tmp_path: Path, name: str, sequence: str) -> None:
    engine = ScriptedEngine()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("a")
        await send_sequence(pilot, sequence)
        await pilot.press("b")
        assert chat.chat_screen.composer.text == "a\nb", name
        assert len(chat.session.branch) == 0


def test_plain_enter_stays_enter_beside_legacy_alt_enter() -> None:
    tell_alt_enter_from_enter()
    assert keys_of("\r") == ["enter"]
    assert keys_of("\x1b\r") == ["ctrl+j"]


async def test_a_trailing_backslash_and_enter_make_a_new_line(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"ab", "backslash", "enter", "c")
        assert chat.chat_screen.composer.text == "ab\nc"
        assert len(chat.session.branch) == 0


async def test_a_line_that_arrives_in_one_piece_is_sent_whole(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=(100, 30)) as pilot:
        for key in (*"first", "enter", *"second", "enter", *"rest"):
            character = "\r" if key == "enter" else key
            chat.post_message(events.Key(key, character))
        await until(pilot, lambda: chat.chat_screen.composer.text == "rest")
        await idle(pilot)
        assert [one.text for one in chat.session.branch if one.role == "user"] == ["first", "second"]


async def test_a_paste_is_never_sent_line_by_line(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await send_sequence(pilot, "\x1b[200~one\rtwo\n\nthree\x1b[201~")
        assert len(chat.session.branch) == 0
        await pilot.press("enter")
        await idle(pilot)
        assert chat.session.branch[0].text == "one\ntwo\n\nthree"


async def test_a_paste_of_a_megabyte_is_taken_whole(tmp_path: Path) -> None:
    text = "\n".join("all work and no play makes a long line of text" for _ in range(22_000))
    assert len(text) > 1_000_000
    chat = app(tmp_path, ScriptedEngine(max_seq_len=2_000_000))
    async with chat.run_test(size=(100, 30)) as pilot:
        with within(15):
            chat.post_message(events.Paste(text))
            await until(pilot, lambda: len(chat.chat_screen.composer.text) == len(text), seconds=30)
        await pilot.press("enter")
        await until(pilot, lambda: len(chat.session.branch) > 0, seconds=30)
        assert chat.session.branch[0].text == text


async def test_a_very_long_text_can_be_typed_into_and_what_is_short_is_wrapped(tmp_path: Path) -> None:
    text = "all work and no play " * 50_000
    assert len(text) > 1_000_000
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        with within(4):  # five times as much was measured: one second, wrapped above 20
            chat.post_message(events.Paste(text))
            await until(pilot, lambda: len(composer.text) == len(text), seconds=30)
            chat.post_message(events.Key("x", "x"))
            await until(pilot, lambda: composer.text.endswith("x"), seconds=30)
        assert not composer.soft_wrap
        composer.set_text("short")
        await until(pilot, lambda: composer.soft_wrap)


async def test_it_grows_with_its_text_up_to_a_third_of_the_screen(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        heights = []
        for lines in (1, 3, 40):
            composer.set_text("\n".join(["line"] * lines))
            await pilot.pause()
            heights.append(composer.outer_size.height)
    assert heights[0] == 3
    assert heights[1] == 5
    assert 5 < heights[2] <= 10


async def test_up_and_down_bring_back_earlier_prompts_and_the_draft(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("a", "b"))
    async with chat.run_test(size=(100, 30)) as pilot:
        for prompt in ("first", "second\nwith a line"):
            await say(pilot, prompt)
            await idle(pilot)
        composer = chat.chat_screen.composer
        seen = []
        composer.set_text("draft")
        for key in ("up", "up", "up", "up", "down", "down"):
            await pilot.press(key)
            seen.append(composer.text)
        second = "second\nwith a line"
        # The cursor comes in behind the text: the second "up" only moves it to the first line of the prompt.
        assert seen == [second, second, "first", "first", second, "draft"]


async def test_a_draft_outlives_an_answer_and_a_change_of_conversation_under_a_recalled_prompt(tmp_path: Path) -> None:
    engine = ScriptedEngine("a", "b")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "first")
        await idle(pilot)
        engine.hold()
        await say(pilot, "second")
        await until(pilot, lambda: chat.session.being_written is not None)
        composer = chat.chat_screen.composer
        composer.set_text("draft")
        await pilot.press("up")
        assert composer.text == "second"
        engine.release()
        await idle(pilot)
        await pilot.press("down")
        assert composer.text == "draft"
        await pilot.press("up")
        first = chat.session.conversation_id
        assert first is not None
        await pilot.press("ctrl+n")
        chat.chat_screen.open_conversation(first)
        assert composer.text == "draft"


async def test_a_draft_survives_going_to_another_conversation(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("a"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "first")
        await idle(pilot)
        first = chat.session.conversation_id
        assert first is not None
        composer = chat.chat_screen.composer
        composer.set_text("half a thought")
        await pilot.press("ctrl+n")
        assert composer.text == ""
        chat.chat_screen.open_conversation(first)
        assert composer.text == "half a thought"


async def test_what_is_being_typed_is_on_disk_a_second_later(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"thought")
        await until(pilot, lambda: '"thought"' in _read(tmp_path / "drafts.json"), seconds=5)
        await pilot.press("enter")
        await idle(pilot)
        assert "thought" not in _read(tmp_path / "drafts.json")
        ident = chat.session.conversation_id
        assert ident is not None
        await pilot.press(*"more")
        await until(pilot, lambda: chat.session.store.draft(ident) == "more", seconds=5)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def offered(pilot: Pilot[int], chat: ChatApp, *keys: str) -> list[str]:
    await pilot.press(*keys)
    await pilot.pause()
    menu = chat.chat_screen.prompt.menu
    return [str(option.prompt).split()[0] for option in menu.options] if menu.display else []


async def test_commands_are_offered_while_one_is_typed(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        assert await offered(pilot, chat, "/", "s") == [
            "/sampling",
            "/save",
            "/schema",
            "/search",
            "/serve",
            "/set",
            "/settings",
            "/sidebar",
            "/speak",
            "/stats",
            "/stop",
            "/system",
        ]
        await pilot.press(*["down"] * 7, "tab")
        assert chat.chat_screen.composer.text == "/sidebar"
        assert await offered(pilot, chat, "escape") == []
        assert chat.chat_screen.composer.text == "/sidebar"


async def test_commands_are_offered_by_some_of_their_letters_and_only_those_that_can_be_done(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        assert await offered(pilot, chat, *"/sdb") == ["/sidebar"]
        chat.chat_screen.composer.set_text("")
        assert await offered(pilot, chat, *"/rnm") == []
        chat.chat_screen.composer.set_text("")
        await say(pilot, "hello")
        await idle(pilot)
        assert await offered(pilot, chat, *"/rnm") == ["/rename"]


async def test_enter_completes_the_beginning_of_a_command_and_then_runs_it(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await offered(pilot, chat, *"/hel")
        await pilot.press("enter")
        await pilot.pause()
        assert chat.chat_screen.composer.text == "/help"
        await pilot.press("enter")
        await until(pilot, lambda: "Esc closes" in shown(chat))


async def test_enter_right_behind_a_fast_argument_sends_it(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        composer = chat.chat_screen.composer
        composer.set_text("/set")
        await until(pilot, lambda: composer.offering)
        composer.set_text("/set top_k 7")
        composer.on_key(events.Key("enter", "\r"))  # before the list of commands has heard of the argument
        await until(pilot, lambda: chat.session.generation.sampling.top_k == 7)


async def test_an_unknown_command_is_named_and_stays(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await say(pilot, "/retyr now")
        await until(pilot, lambda: "did you mean /retry?" in shown(chat))
        assert chat.chat_screen.composer.text == "/retyr now"
        assert len(chat.session.branch) == 0


async def test_a_command_that_cannot_be_done_now_keeps_what_was_typed_after_it(tmp_path: Path) -> None:
    engine = ScriptedEngine("a")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "first")
        await until(pilot, lambda: chat.session.answering is not None)
        await say(pilot, "/system You are a patient teacher")
        await until(pilot, lambda: "the system prompt can be changed when" in told(chat))
        assert chat.chat_screen.composer.text == "/system You are a patient teacher"
        engine.release()
        await idle(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: chat.session.system_prompt == "You are a patient teacher")
        assert chat.chat_screen.composer.text == ""


async def test_two_slashes_send_a_literal_one(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "//etc/hosts, what is it?")
        await idle(pilot)
        assert chat.session.branch[0].text == "/etc/hosts, what is it?"


async def test_nothing_but_space_is_not_sent(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, " \n ")
        await pilot.pause()
        assert len(chat.session.branch) == 0


async def test_pasted_control_characters_are_drawn_as_pictures_and_sent_as_they_are(tmp_path: Path) -> None:
    text = "abc\x1b[31mred\x07\x9b31m \u202eevil\u200b \x7f end"
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        chat.post_message(events.Paste(text))
        await until(pilot, lambda: "abc" in shown(chat))
        screen = shown(chat)
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\x7f"} & set(screen)
        assert "abc␛[31mred␇" in screen
        await pilot.press("enter")
        await idle(pilot)
        assert chat.session.branch[0].text == text
        await pilot.press("up")
        assert "\x1b" not in shown(chat)
