"""The settings in the app: the screen of them, and what of a changed one is to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.commands.settings import SettingsCommands

if TYPE_CHECKING:
    from exlchat.app.keys.keymap import Keymap
    from exlchat.config.schema import Underscores
    from exlchat.ui.tui.chat_view import ChatView

_NARROW_CELLS = 80


class ScreenSettings(SettingsCommands):
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView) -> None:
        super().__init__(screen)
        self._screen = screen

    def _show_all(self) -> None:
        # No start needs it.
        from exlchat.ui.tui.screens.settings import SettingsScreen

        self._screen.terminal.push_screen(SettingsScreen(self))

    def themes(self) -> list[str]:
        return list(self._screen.theme_names())

    def _show_theme(self, name: str) -> None:
        self._screen.terminal.show_theme(name)

    def _show_sidebar(self, shown: bool) -> None:
        self._screen.show_sidebar(shown and self._screen.terminal.size.width >= _NARROW_CELLS)

    def _show_underscores(self, meant: Underscores) -> None:
        self._screen.transcript.underscores = meant

    def _use_vi(self, wanted: bool) -> None:
        self._screen.composer.use_vi(wanted)

    def _use_keys(self, keys: Keymap) -> None:
        self._screen.use_keys(keys)
