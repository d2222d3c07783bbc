"""A theme file that is edited while the app runs: what is saved is seen, what is broken is told once."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.app import live_themes
from exlchat.app.live_themes import ThemeWatch
from exlchat.config.themes import ThemeError, ThemeShelf
from exlchat.ui.tui import terminal_app
from exlchat.ui.tui.app import ChatApp
from tests.patience import PATIENCE
from tests.ui.app_harness import app, say, told, until

GROUND = '[colors]\nbackground = "{}"\n'
SHIPPED = Path(__file__).parents[3] / "themes"


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_themes, "LOOK_SECONDS", 0.05)


@pytest.fixture
def dusk(home: Path) -> Path:
    """A theme file of the user."""
    file = home / "config" / "themes" / "dusk.toml"
    file.parent.mkdir(parents=True)
    file.write_text(GROUND.format("#102030"))
    return file


def ground(chat: ChatApp) -> str:
    """The background that is on the screen."""
    return chat.chat_screen.background_colors[1].hex.lower()


async def test_what_is_saved_is_on_the_screen_at_once(tmp_path: Path, dusk: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(notifications=True) as pilot:
        await say(pilot, "/theme dusk")
        await until(pilot, lambda: ground(chat) == "#102030")
        code = chat.chat_screen.transcript.code_style
        dusk.write_text(GROUND.format("#302010") + '[syntax]\nkeyword = "#abcdef"\n')
        await until(pilot, lambda: ground(chat) == "#302010")
        await until(pilot, lambda: chat.chat_screen.transcript.code_style is not code)
        assert told(chat) == ""


async def test_an_error_is_told_once_with_file_line_and_key_and_the_last_good_one_stays(
    tmp_path: Path, dusk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a toast's time can be over before anybody looks.
    monkeypatch.setattr(terminal_app, "_THEME_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(terminal_app, "_GOOD_NEWS_SECONDS", 10 * PATIENCE)
    chat = app(tmp_path)
    async with chat.run_test(notifications=True) as pilot:
        await say(pilot, "/theme dusk")
        await until(pilot, lambda: ground(chat) == "#102030")
        dusk.write_text(GROUND.format("blue"))
        await until(pilot, lambda: f"{dusk}: line 2: colors.background: 'blue'" in told(chat))
        await pilot.pause(0.3)
        assert len(chat._notifications) == 1
        dusk.write_text("\n" + GROUND.format("blue"))
        await until(pilot, lambda: f"{dusk}: line 3: colors.background" in told(chat))
        assert len(chat._notifications) == 1
        # Nothing is left of the first: the second stands where that was.
        await until(pilot, lambda: [toast.region.y for toast in chat.screen.query("Toast")] == [2])
        assert ground(chat) == "#102030"
        dusk.write_text(GROUND.format("#302010"))
        await until(pilot, lambda: told(chat) == "dusk.toml can be used again")
        await until(pilot, lambda: ground(chat) == "#302010")


async def test_what_was_broken_at_the_start_is_not_told_twice(
    tmp_path: Path, dusk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dusk.write_text("[colors\n")
    monkeypatch.setattr(terminal_app, "_GOOD_NEWS_SECONDS", 10 * PATIENCE)
    chat = app(tmp_path, notices=("as the start says it",))
    async with chat.run_test(notifications=True) as pilot:
        await pilot.pause(0.4)
        assert told(chat) == "as the start says it"
        dusk.write_text(GROUND.format("#302010"))
        await until(pilot, lambda: "dusk.toml can be used again" in told(chat))


async def test_a_theme_whose_file_is_gone_stays_while_it_is_in_use(tmp_path: Path, dusk: Path) -> None:
    other = dusk.with_name("noon.toml")
    other.write_text("dark = false\n")
    chat = app(tmp_path)
    async with chat.run_test(notifications=True) as pilot:
        await say(pilot, "/theme dusk")
        await until(pilot, lambda: ground(chat) == "#102030")
        assert "noon" in chat.themes.themes
        dusk.unlink()
        other.unlink()
        await until(pilot, lambda: "noon" not in chat.themes.themes)
        assert ground(chat) == "#102030"
        assert told(chat) == ""


def test_nothing_is_read_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ThemeWatch(SHIPPED, tmp_path)
    assert isinstance(watch.look(), ThemeShelf)
    with monkeypatch.context() as patch:
        patch.setattr("exlchat.app.live_themes.read_shelf", lambda *_: pytest.fail("read"))
        assert watch.look() is None
    (tmp_path / "new.toml").write_text("dark = false\n")
    found = watch.look()
    assert isinstance(found, ThemeShelf)
    assert "new" in found.themes
    assert watch.look() is None
    (tmp_path / "new.toml").unlink()
    assert isinstance(watch.look(), ThemeShelf)


def test_a_file_that_is_being_written_is_left_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ThemeWatch(SHIPPED, tmp_path)
    file = tmp_path / "new.toml"
    with monkeypatch.context() as patch:
        patch.setattr("exlchat.app.live_themes.time.sleep", lambda _: file.write_text("dark = fal"))
        assert watch.look() is None
    file.write_text("dark = false\n")
    found = watch.look()
    assert isinstance(found, ThemeShelf)
    assert not found.problems


def test_a_broken_installation_is_an_error_that_is_given_once(tmp_path: Path) -> None:
    watch = ThemeWatch(tmp_path, tmp_path / "none")
    assert isinstance(watch.look(), ThemeError)
    assert watch.look() is None
