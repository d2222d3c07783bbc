"""/models in the app: a list to choose from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.commands.model import ModelCommands
from exlchat.ui.tui.screens.models import ModelsScreen

if TYPE_CHECKING:
    from exlchat.ui.tui.screens.chat import ChatScreen


class ScreenModelCommands(ModelCommands):
    """With the library as a screen."""

    def __init__(self, screen: ChatScreen) -> None:
        super().__init__(screen)
        self._screen = screen

    def choose(self) -> None:
        """Show the library; what is chosen there is loaded."""
        loaded = self._screen.model.info
        picker = ModelsScreen(self._screen.services.shelf.listed, Path(loaded.path) if loaded else None)
        self._screen.app.push_screen(picker, lambda path: self.change_to(path) if path else None)
