"""Links of messages are shown before they are opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from exlchat.ui.render import links
from exlchat.ui.render.links import Link
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.link import LinkScreen
from exlchat.ui.tui.screens.pick import PickScreen
from tests.ui.app_harness import app, idle, say, told, until
from tests.ui.scripted_engine import ScriptedEngine

ANSWER = "Read [the manual](https://host.org/manual) or [this](docs/readme.md)."


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the browser was asked to open."""
    targets: list[str] = []

    def note(link: Link) -> None:
        targets.append(link.target)

    monkeypatch.setattr(links, "open_link", note)
    return targets


def asked(chat: ChatApp) -> str:
    assert isinstance(chat.screen, LinkScreen)
    return "\n".join(str(one.render()) for one in chat.screen.query(Static))


def is_asking(chat: ChatApp) -> bool:
    return isinstance(chat.screen, LinkScreen)


def place_of(chat: ChatApp, text: str) -> tuple[int, int]:
    """Where a text stands on the screen."""
    region = chat.chat_screen.transcript.content_region
    for y in range(region.height):
        line = chat.chat_screen.transcript.render_line(y).text
        if text in line:
            return region.x + line.index(text), region.y + y
    raise AssertionError(text)


async def answered(pilot: Pilot[int], prompt: str = "where?") -> None:
    await say(pilot, prompt)
    await idle(pilot)
    await pilot.pause(0.1)


async def test_a_click_on_a_link_asks_and_enter_opens(tmp_path: Path, opened: list[str]) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=(100, 30)) as pilot:
        await answered(pilot)
        x, y = place_of(chat, "manual")
        await pilot.click(offset=(x + 2, y))
        await pilot.pause()
        assert "https://host.org/manual" in asked(chat)
        assert opened == []
        await pilot.press("enter")
        await until(pilot, lambda: opened == ["https://host.org/manual"])
        assert not is_asking(chat)
        await pilot.click(offset=place_of(chat, "Read"))
        await pilot.pause()
        assert not is_asking(chat)


async def test_escape_leaves_and_c_copies(tmp_path: Path, opened: list[str]) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=(100, 30)) as pilot:
        await answered(pilot)
        await pilot.click(offset=place_of(chat, "this"))
        await pilot.pause()
        assert "this can only be copied" in asked(chat)
        await pilot.press("enter")
        assert is_asking(chat)
        await pilot.press("c")
        assert chat.clipboard == "docs/readme.md"
        await pilot.click(offset=place_of(chat, "manual"))
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert not is_asking(chat)
        assert opened == []


async def test_dragging_over_a_link_selects_its_text(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=(100, 30)) as pilot:
        await answered(pilot)
        x, y = place_of(chat, "manual")
        await pilot.mouse_down(offset=(x, y))
        await pilot.hover(offset=(x + 6, y))
        await pilot.mouse_up(offset=(x + 6, y))
        await pilot.pause()
        assert not is_asking(chat)
        assert chat.screen.get_selected_text() == "manual"


async def test_the_key_asks_about_the_only_link_or_gives_a_list(tmp_path: Path, opened: list[str]) -> None:
    chat = app(tmp_path, ScriptedEngine(ANSWER, "none here"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await answered(pilot, "is it https://only.org/one ?")
        await pilot.press("ctrl+up", "w")
        await pilot.pause()
        assert isinstance(chat.screen, PickScreen)
        await pilot.press(*"manual", "enter")
        await pilot.pause()
        assert "https://host.org/manual" in asked(chat)
        await pilot.press("escape", "up", "w")
        await pilot.pause()
        assert "https://only.org/one" in asked(chat)
        await pilot.press("enter")
        await until(pilot, lambda: opened == ["https://only.org/one"])
        await pilot.press("escape")
        await answered(pilot, "more?")
        await pilot.press("ctrl+up", "end", "w")
        await pilot.pause()
        assert "there is no link in this message" in told(chat)


async def test_what_a_model_writes_into_an_address_is_shown_as_text(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("[go](https://bank.com@evil.com/[b]x[/b]\x1b]8;;)"))
    async with chat.run_test(size=(60, 20)) as pilot:
        await answered(pilot)
        await pilot.press("ctrl+up", "w")
        await pilot.pause()
        assert "https://bank.com@evil.com/[b]x[/b]␛]8;;" in asked(chat)
        assert "\x1b" not in asked(chat)


async def test_a_browser_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(link: Link) -> None:
        raise links.OpenError(f"no browser for {link.host}")

    monkeypatch.setattr(links, "open_link", fail)
    chat = app(tmp_path, ScriptedEngine(ANSWER))
    async with chat.run_test(size=(100, 30)) as pilot:
        await answered(pilot)
        await pilot.click(offset=place_of(chat, "manual"))
        await pilot.press("enter")
        await until(pilot, lambda: "no browser for host.org" in told(chat))
