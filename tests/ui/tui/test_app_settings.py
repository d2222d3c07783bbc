"""The settings screen: each kind of editor, what holds at once, what cannot be, and a broken file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat.app.keys.keymap import BINDABLE
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.config.files import load_settings
from exlchat.config.layers import typed
from exlchat.config.schema import SETTINGS, grouped
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.settings import SettingsScreen
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "config" / "settings.toml"
    path.parent.mkdir(parents=True)
    return path


def screen(pilot: Pilot[int]) -> SettingsScreen:
    found = pilot.app.screen
    assert isinstance(found, SettingsScreen)
    return found


async def go_to(pilot: Pilot[int], key: str) -> SettingsScreen:
    """Open the settings, if they are not open, and go to a row."""
    if not isinstance(pilot.app.screen, SettingsScreen):
        await pilot.press("f2")
        await pilot.pause()
    found = screen(pilot)
    found.rows.highlighted = found.rows.get_option_index(key)
    await pilot.pause()
    return found


def words(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").split())


async def test_every_setting_and_every_action_with_keys_has_a_row(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/settings")
        await pilot.pause()
        expected = {*SETTINGS, *(f"keys.{action}" for action in BINDABLE)} - {"keys"}
        assert set(screen(pilot)._rows) == expected
        await pilot.press("escape")
        assert chat.screen is chat.chat_screen
        await pilot.press("f2")
        await pilot.press("f2")
        assert chat.screen is chat.chat_screen


async def test_a_switch_turns_with_enter_and_with_space(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        assert chat.chat_screen.sidebar_shown
        await go_to(pilot, "sidebar")
        await pilot.press("enter")
        assert not load_settings(file).sidebar
        assert not chat.chat_screen.sidebar_shown
        assert "sidebar is written; it holds now" in words(chat)
        await pilot.press("space")
        assert load_settings(file).sidebar
        assert chat.chat_screen.sidebar_shown


async def test_typing_narrows_the_list_and_what_is_left_is_changed(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("f2", *"min_p")
        opened = screen(pilot)
        await until(pilot, lambda: [one.id for one in opened.rows.options if one.id] == ["min_p"])
        await pilot.press("enter", *"0.3", "enter")
        assert load_settings(file).min_p == 0.3
        assert "min_p is written" in words(chat)
        await pilot.press(*" nosuch")
        await until(pilot, lambda: "Nothing has these words" in words(chat))
        await pilot.press("enter", "delete", "down")
        assert isinstance(chat.screen, SettingsScreen)
        await pilot.press("ctrl+u", *"folders model")
        await until(pilot, lambda: "model_folders" in [one.id for one in opened.rows.options])
        assert "min_p" not in [one.id for one in opened.rows.options]


async def test_a_choice_is_made_from_a_list(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await go_to(pilot, "context_policy")
        await pilot.press("enter", "down", "enter")
        assert load_settings(file).context_policy == "summarise"
        assert chat.session.generation.context_policy == "summarise"
        await go_to(pilot, "theme")
        await pilot.press("enter", "down", "enter")
        assert load_settings(file).theme == "exlchat-light"
        assert chat.theme == "exlchat-light"
        await go_to(pilot, "quantize_head")
        await pilot.press("enter", "end", "enter")
        assert load_settings(file).quantize_head == 8
        assert "holds when a model is loaded next" in words(chat)
        await pilot.press("enter", "home", "enter")
        assert load_settings(file).quantize_head is None


async def test_what_underscores_are_holds_at_once_and_at_the_next_start(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("call _this_ of my_file_name", "and _that_"))
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        assert "call _this_ of my_file_name" in shown(chat)
        await say(pilot, "/settings underscores emphasis")
        await until(pilot, lambda: "call this of my_file_name" in shown(chat))
        await say(pilot, "2?")
        await idle(pilot)
        assert "and that" in shown(chat)
    again = app(tmp_path, continue_last=True, settings=load_settings(file))
    async with again.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "call this of my_file_name" in shown(again))
        await say(pilot, "/settings underscores default")
        await until(pilot, lambda: "call _this_ of my_file_name" in shown(again))


async def test_a_number_is_checked_while_it_is_typed(tmp_path: Path, file: Path) -> None:
    file.write_text("# mine\ntop_p = 0.9\n")
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        opened = await go_to(pilot, "top_p")
        await pilot.press("enter")
        assert opened.field.value == "0.9"
        await pilot.press(*"2")
        await pilot.pause()
        assert "top_p is 2.0; it must be a number above 0 and at most 1" in words(chat)
        await pilot.press("enter")
        assert opened.field.display
        assert file.read_text() == "# mine\ntop_p = 0.9\n"
        await pilot.press("backspace", *"0.5")
        await pilot.pause()
        assert "it must be" not in words(chat)
        await pilot.press("enter")
        assert file.read_text() == "# mine\ntop_p = 0.5\n"
        assert chat.session.generation.sampling.top_p == 0.5
        assert opened.typed.has_focus


async def test_the_next_answer_is_drawn_by_what_was_set(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One.", "Two."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await go_to(pilot, "temperature")
        await pilot.press("enter", *"0.3", "enter", "escape")
        await say(pilot, "a?")
        await idle(pilot)
        record = chat.session.branch[-1].record
        assert record is not None
        assert record.sampling.temperature == 0.3


async def test_escape_leaves_the_editor_and_nothing_is_written(tmp_path: Path, home: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await go_to(pilot, "top_k")
        await pilot.press("enter", *"12", "escape")
        assert isinstance(chat.screen, SettingsScreen)
        assert not (home / "config" / "settings.toml").exists()
        await pilot.press("escape")
        assert chat.screen is chat.chat_screen


async def test_the_system_prompt_may_have_lines_and_holds_for_the_next_conversation(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await go_to(pilot, "system")
        await pilot.press("enter", *"Be", "ctrl+j", *"brief.", "enter")
        assert load_settings(file).system == "Be\nbrief."
        assert "holds for the next conversation" in words(chat)
        assert chat.session.system_prompt is None
        await pilot.press("escape", "ctrl+n")
        assert chat.session.system_prompt == "Be\nbrief."


async def test_folders_stand_one_a_line(tmp_path: Path, file: Path) -> None:
    file.write_text('model_folders = ["/a"]\n')
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        opened = await go_to(pilot, "model_folders")
        await pilot.press("enter")
        assert opened.lines.text == "/a"
        await pilot.press("ctrl+j", *"/b", "enter")
        assert load_settings(file).model_folders == ("/a", "/b")
        assert chat.chat_screen.services.shelf.settings.model_folders == ("/a", "/b")


async def test_a_default_comes_back_with_delete(tmp_path: Path, file: Path) -> None:
    file.write_text("# mine\ntop_k = 9\nmin_p = 0.1\n")
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await go_to(pilot, "top_k")
        assert "The file says so" in words(chat)
        await pilot.press("delete")
        assert file.read_text() == "# mine\nmin_p = 0.1\n"
        assert "top_k is back at its default" in words(chat)


async def test_keys_are_changed_and_hold_at_once(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One.", "Two."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        opened = await go_to(pilot, "keys.retry")
        await pilot.press("enter")
        opened.field.value = "ctrl+n"
        await pilot.pause()
        assert "ctrl+n is a key of new" in words(chat)
        opened.field.value = "Ctrl+G, f12"
        await pilot.press("enter")
        assert tomllib.loads(file.read_text()) == {"keys": {"retry": ["ctrl+g", "f12"]}}
        await pilot.press("escape", "f12")
        await idle(pilot)
        assert "Two." in shown(chat)
        await go_to(pilot, "keys.retry")
        await pilot.press("delete", "escape", "f12")
        assert not chat.session.busy


async def test_the_key_of_the_settings_themselves_can_be_changed(tmp_path: Path, file: Path) -> None:
    file.write_text('[keys]\nsettings = "f12"\n')
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("f2")
        assert chat.screen is chat.chat_screen
        await pilot.press("f12")
        assert isinstance(chat.screen, SettingsScreen)
        await pilot.press("f12")
        assert chat.screen is chat.chat_screen


async def test_what_stands_over_the_file_is_shown_and_goes_on_holding(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXLCHAT_TOP_K", "4")
    monkeypatch.setenv("EXLCHAT_THEME", "exlchat-light")
    chat = ChatApp(open_services(AppOptions(None, layers=(typed(theme="exlchat-dark"),))))
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "theme")
        text = words(chat)
        assert "! theme exlchat-dark" in text
        assert "This start was given exlchat-dark (--theme)" in text
        await go_to(pilot, "top_k")
        assert "The environment variable EXLCHAT_TOP_K beats the file." in words(chat)
        await pilot.press("enter", *"7", "enter")
        assert tomllib.loads(file.read_text()) == {"top_k": 7}
        assert "something else holds in this start" in words(chat)
        assert "In the file: 7" in words(chat)
        assert chat.session.generation.sampling.top_k == 4
        await go_to(pilot, "theme")
        await pilot.press("enter", "end", "enter")
        assert chat.theme == "exlchat-dark"


async def test_of_a_broken_file_the_last_good_one_stays_and_one_toast_says_so(tmp_path: Path, file: Path) -> None:
    file.write_text("top_k = 9\n")
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        file.write_text("top_k = 9\nmin_p = 7\n")
        for _ in range(2):
            await go_to(pilot, "top_k")
            assert "• top_k 9" in words(chat)
            await pilot.press("escape")
        assert told(chat).count("min_p is 7") == 1
        assert chat.session.generation.sampling.top_k == 9
        await go_to(pilot, "top_k")
        await pilot.press("enter", *"3", "enter")
        assert file.read_text() == "top_k = 9\nmin_p = 7\n"
        assert "min_p is 7" in words(chat)
        await pilot.press("escape", "escape")
        file.write_text("top_k = 5\n")
        await pilot.press("f2")
        assert chat.session.generation.sampling.top_k == 5


async def test_a_file_that_cannot_be_written_is_said_where_one_types(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        opened = await go_to(pilot, "top_k")
        file.mkdir()
        await pilot.press("enter", *"3", "enter")
        assert "not a plain file" in words(chat)
        assert opened.field.display


async def test_pasted_escapes_do_not_come_in(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "user_name")
        await pilot.press("enter")
        opened = screen(pilot)
        opened.field.value = ""
        opened.field.insert_text_at_cursor("a\x1b[2Jb")
        await pilot.pause()
        assert "\x1b" not in opened.field.value


def places(key: str) -> int:
    """How many settings stand above one on the screen."""
    return [one.key for _, settings in grouped() for one in settings].index(key)


@pytest.mark.parametrize("size", [(40, 20), (20, 6), (400, 120)])
async def test_it_works_in_any_size(tmp_path: Path, file: Path, size: tuple[int, int]) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=size) as pilot:
        await pilot.press("f2")
        await pilot.pause()
        await pilot.press(*["down"] * places("min_p"), "enter", *"0.2", "enter")
        assert load_settings(file).min_p == 0.2
        assert all(len(line) <= size[0] for line in shown(chat).splitlines())
        if size[0] >= 40:
            assert "min_p" in shown(chat)
            assert "0.2" in shown(chat)


async def test_the_palette_has_it(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("ctrl+p", *"Settings")
        await until(pilot, lambda: "See all settings" in shown(chat))


async def test_what_is_remembered_for_the_model_is_shown_as_what_holds(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/model set context 300")
        await go_to(pilot, "context")
        await pilot.press("enter", *"400", "enter")
        text = words(chat)
        assert load_settings(file).context == 400
        assert "! context 300" in text
        assert "For this model 300 is remembered, which holds (/model set context). In the file: 400" in text


async def test_a_setting_is_told_and_changed_by_a_command(tmp_path: Path, file: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        await say(pilot, "/settings theme exlchat-light")
        await until(pilot, lambda: chat.theme == "exlchat-light")
        assert tomllib.loads(file.read_text())["theme"] == "exlchat-light"
        assert "theme = exlchat-light; it holds now" in told(chat)
        await say(pilot, "/settings keys.retry ctrl+t")
        await until(pilot, lambda: chat.chat_screen.keys.keys("retry") == ("ctrl+t",))
        await say(pilot, "/settings theme default")
        await until(pilot, lambda: chat.theme == "exlchat-dark")
        assert "theme" not in tomllib.loads(file.read_text())
        await say(pilot, "/settings top_k")
        await until(pilot, lambda: "top_k = 0 (default)" in shown(chat))
        await say(pilot, "/settings top_k many")
        await until(pilot, lambda: "top_k is 'many'" in told(chat))
