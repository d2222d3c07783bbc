"""Terminals of any size in any theme: what is being typed stays in sight, and nothing breaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual import events
from textual.geometry import Size

from exlchat.config.themes import load_themes
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, until
from tests.ui.scripted_engine import ScriptedEngine

SIZES = [(200, 50), (80, 24), (60, 20), (40, 12), (20, 5)]
THEMES = load_themes(Path(__file__).parents[3] / "themes", Path("/nowhere"))[0]
ANSWER = (
    "## One\n\n`two` [three](https://four.example)\n\n```python\nfive = 'six'  # seven\n```\n\n|a|b|\n|-|-|\n|c|d|\n"
)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.sweep(3)
async def test_every_theme_draws_every_screen_at_every_size(tmp_path: Path, theme: str) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=SIZES[0], notifications=True) as pilot:
        chat.choose_theme(theme)
        await say(pilot, "show all")
        await idle(pilot)
        for size in SIZES if theme == "exlchat-dark" else SIZES[1::3]:
            await pilot.resize_terminal(*size)
            for open_it, close_it, seen in (
                (("f1",), ("escape",), "Esc closes"),
                (("ctrl+p",), ("escape",), "Search for"),
                (("/",), ("backspace",), "/alternative"),
            ):
                await pilot.press(*open_it)
                await until(pilot, lambda seen=seen: seen in shown(chat))  # type: ignore[misc]
                await pilot.press(*close_it)
                await until(pilot, lambda: chat.screen is chat.chat_screen)
            await until(pilot, lambda: "Write a message" in shown(chat))


@pytest.mark.parametrize("size", SIZES)
async def test_the_list_of_commands_leaves_what_is_typed_in_sight(tmp_path: Path, size: tuple[int, int]) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=size) as pilot:
        await pilot.press("/")
        await until(pilot, lambda: "/ban" in shown(chat))
        composer, status = chat.chat_screen.composer, chat.chat_screen.status
        assert composer.region.bottom <= size[1] - 1
        assert status.region.bottom == size[1]


async def test_help_in_twenty_columns_has_its_words(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(20, 40)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        words = " ".join(re.sub("[│▁-█]", " ", shown(chat)).split())
        assert "First of all enter Send the message." in words
        await pilot.resize_terminal(100, 40)
        await until(pilot, lambda: "ctrl+n, /new " in shown(chat))
        assert any("escape" in line and "Stop the answer" in line for line in shown(chat).splitlines())


@pytest.mark.parametrize("width", [20, 23, 24, 26, 60, 100])
async def test_a_toast_shows_all_its_words_in_a_terminal_of_any_width(tmp_path: Path, width: int) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(width, 12), notifications=True) as pilot:
        chat.chat_screen.tell("conversations.db: full")
        await until(pilot, lambda: "full" in shown(chat))
        lines = [line.partition("▌")[2].strip() for line in shown(chat).splitlines() if "▌" in line]
        assert " ".join(line for line in lines if line) == "conversations.db: full"


async def test_the_placeholder_is_whole_or_short(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(44, 20)) as pilot:
        for width in range(44, 36, -1):
            await pilot.resize_terminal(width, 20)
            await until(pilot, lambda: "Write a message" in shown(chat))
            line = next(line for line in shown(chat).splitlines() if "Write a message" in line)
            assert line.strip("│ ") in ("Write a message · Enter sends · /help", "Write a message")


@pytest.mark.parametrize("theme", ["ansi", "mono"])
async def test_themes_of_the_terminal_paint_no_background(tmp_path: Path, theme: str) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=(80, 24)) as pilot:
        await say(pilot, "show all")
        await idle(pilot)
        chat.choose_theme(theme)
        await pilot.pause(0.2)
        assert painted(chat) <= {"default"}
        await pilot.press("f1")
        await pilot.pause(0.2)
        assert painted(chat) <= {"default"}


def painted(chat: ChatApp) -> set[str]:
    """Backgrounds on the screen, by Rich's names."""
    strips = chat.screen._compositor.render_strips()
    styles = [segment.style for strip in strips for segment in strip if segment.style is not None]
    return {style.bgcolor.name for style in styles if style.bgcolor is not None}


async def test_a_storm_of_sizes_while_an_answer_comes_loses_nothing(tmp_path: Path) -> None:
    answer = "".join(f"- point **{number}** of `many`\n" for number in range(60))
    engine = ScriptedEngine(answer)
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        chat.chat_screen.send("go on")
        await until(pilot, lambda: chat.session.being_written is not None)
        for number, size in enumerate([(20, 5), (400, 120), (7, 3), (100, 30), (60, 12), (400, 5), (20, 60)] * 3):
            engine.step(60)
            # Without waiting for what the size before has set off, as when a window is dragged.
            chat._driver._size = size  # type: ignore[union-attr]
            chat.post_message(events.Resize(Size(*size), Size(*size)))
            if number % 3 == 0:
                await pilot.pause()
        await pilot.resize_terminal(100, 30)
        engine.release()
        await idle(pilot)
        assert chat.session.branch[-1].text == answer

        def ends_are_shown() -> bool:
            lines = [line.strip(" │▁▂▃▄▅▆▇█") for line in shown(chat).splitlines()]
            return any(line.endswith("point 59 of many") for line in lines)

        await until(pilot, ends_are_shown)


@pytest.mark.parametrize("columns", [60, 80, 100, 121])
async def test_a_toast_shows_every_word(tmp_path: Path, columns: int) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(columns, 24), notifications=True) as pilot:
        line = "this message has no alternatives; e edits it, r has it answered again, and so on and on"
        chat.chat_screen.tell(line)
        # It slides in: its first words may be on the screen before its last ones.
        await until(pilot, lambda: line in " ".join(re.sub("[│▌▁-█]", " ", shown(chat)).split()))
