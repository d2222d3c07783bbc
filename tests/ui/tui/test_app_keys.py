"""Keys of the user's own in the app."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual._xterm_parser import XTermParser

from exlchat.app.keys.keymap import keymap
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.help import HelpScreen
from tests.ui.app_harness import app, idle, say, shown, until
from tests.ui.scripted_engine import ScriptedEngine


def with_keys(folder: Path, *answers: str, **own: tuple[str, ...]) -> ChatApp:
    keys = keymap(tuple((action.replace("_", "-"), names) for action, names in own.items()))
    assert not keys.problems
    return app(folder, ScriptedEngine(*answers), keys=keys)


async def test_a_remapped_key_does_it_and_the_old_one_does_not(tmp_path: Path) -> None:
    chat = with_keys(tmp_path, "One.", "Two.", "Three.", retry=("ctrl+g", "f12"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert not chat.session.busy
        for key, answer in (("ctrl+g", "Two."), ("f12", "Three.")):
            await pilot.press(key)
            await idle(pilot)
            assert answer in shown(chat)


async def test_the_help_the_palette_and_the_welcome_show_the_keys_in_force(tmp_path: Path) -> None:
    chat = with_keys(tmp_path, help=("f11",), quit=("alt+q",), new=("ctrl+g",))
    async with chat.run_test(size=(100, 60)) as pilot:
        assert "alt+q quits, F11 shows keys" in shown(chat)
        await pilot.press("f11")
        await pilot.pause()
        lines = [line for line in shown(chat).splitlines() if "Start a new conversation." in line]
        assert "ctrl+g" in lines[0]
        assert "ctrl+n" not in lines[0]
        await pilot.press("f11")
        assert chat.screen is chat.chat_screen
        await pilot.press("ctrl+p", *"new conv")
        await until(pilot, lambda: "Start a new conversation.  ctrl+g" in shown(chat))
        await pilot.press("escape")
        await pilot.press("alt+q")
        await until(pilot, lambda: chat.return_code == 0)


async def test_the_composers_keys_change_places(tmp_path: Path) -> None:
    chat = with_keys(tmp_path, "One.", send=("alt+enter",), new_line=("enter",), earlier_prompt=("alt+up", "alt+down"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("a", "enter", "b")
        assert chat.chat_screen.composer.text == "a\nb"
        await pilot.press("alt+enter")
        await idle(pilot)
        assert [one.text for one in chat.session.branch if one.role == "user"] == ["a\nb"]
        await pilot.press("up")
        assert chat.chat_screen.composer.text == ""
        await pilot.press("alt+up")
        assert chat.chat_screen.composer.text == "a\nb"
        await pilot.press("alt+down")
        assert chat.chat_screen.composer.text == ""


async def test_keys_that_the_text_area_knows_are_taken_from_it(tmp_path: Path) -> None:
    chat = with_keys(tmp_path, "One.", copy=("f11",), scroll_page=("alt+up", "alt+down"))
    copied: list[str] = []
    chat.copy_to_clipboard = copied.append  # type: ignore[method-assign]
    async with chat.run_test(size=(100, 12)) as pilot:
        await say(pilot, "a\n" * 40)
        await idle(pilot)
        await pilot.press("ctrl+y")
        assert copied == []
        await pilot.press("f11")
        assert copied == ["One."]
        end = chat.chat_screen.transcript.scroll_y
        await pilot.press("alt+up")
        await pilot.pause()
        assert chat.chat_screen.transcript.scroll_y < end


async def test_the_sidebars_keys(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    store.add_message(store.create_conversation().id, "user", "hello")
    keys = keymap((("delete-selected", ("z",)), ("open-selected", ("o",)), ("leave-sidebar", ("q",))))
    chat = app(tmp_path, store=store, keys=keys)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+b", "d")
        assert len(store.list_conversations()) == 1
        await pilot.press("o")
        await pilot.pause()
        assert [one.text for one in chat.session.branch] == ["hello"]
        await pilot.press("ctrl+b", "q")
        assert chat.focused is chat.chat_screen.composer
        await pilot.press("ctrl+b", "z")
        await pilot.press("down", "enter")
        await pilot.pause()
        assert store.list_conversations() == []


def test_the_settings_file_is_where_keys_come_from_and_what_cannot_be_is_a_notice(home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text('[keys]\nretry = "ctrl+t"\nnew = ["ctrl+i"]\n')
    services = open_services(AppOptions(None))
    assert services.keys.keys("retry") == ("ctrl+t",)
    assert services.keys.keys("new") == ("ctrl+n",)
    assert services.notices == ("keys.new: ctrl+i cannot be told from tab in terminals; ctrl+n stays",)
    services.close()


async def test_alt_with_a_letter_as_terminals_send_it_types_nothing(tmp_path: Path) -> None:
    chat = with_keys(tmp_path, help=("alt+h",))
    async with chat.run_test(size=(100, 30)) as pilot:
        parser = XTermParser()
        # The end of what is there tells that nothing follows, as a short wait does in the terminal.
        for event in (*parser.feed("\x1bh"), *parser.feed("")):
            chat.post_message(event)
        await until(pilot, lambda: isinstance(chat.screen, HelpScreen))
        await pilot.press("escape")
        assert chat.chat_screen.composer.text == ""


async def test_a_dialog_that_is_asked_for_before_the_first_screen_stands_is_framed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = ChatApp._painted

    async def typed_ahead(self: ChatApp) -> None:
        await self.push_screen(HelpScreen(self.chat_screen.keys))
        painted(self)

    monkeypatch.setattr(ChatApp, "_painted", typed_ahead)
    chat = app(tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: isinstance(chat.screen, HelpScreen))
        await until(pilot, lambda: chat.screen.query_one("#help").region.width == 96)
