"""The themes of the running app: files are followed while they are edited, and broken ones are told of once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from textual.notifications import Notification

from exlchat import paths
from exlchat.ui.markdown.sanitize import printable
from exlchat.ui.theme_files import ThemeError, ThemeShelf, read_shelf
from exlchat.ui.theme_watch import LOOK_SECONDS, ThemeWatch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from exlchat.ui.themes import ThemeFile

_TOLD_SECONDS = 60.0
"""A file that is being mended is looked at for longer than most toasts."""
_SHIPPED = "the installation"


class ThemedApp(Protocol):
    """What this needs of the app."""

    @property
    def theme_in_use(self) -> str:
        """Name of the theme on the screen."""

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Know these from now on in the place of others of their names, and show them where they are in use."""

    def show_toast(self, toast: Notification) -> None:
        """Show it."""

    def take_toast(self, toast: Notification) -> None:
        """Take it away if it is still there."""


class LiveThemes:
    """All themes by name, as last read without fault."""

    def __init__(self, app: ThemedApp, themes: dict[str, ThemeFile]) -> None:
        self.themes = themes
        self._app = app
        self._paths: dict[str, Path] = {}
        self._told: dict[Path | str, tuple[str, Notification | None]] = {}
        """By file, what was said to be wrong with it, and the toast unless the start said it."""

    async def follow(self) -> None:
        """Take over what is changed in the files, until cancelled. What was wrong at the start has been told."""
        watch = ThemeWatch(paths.shipped_themes(), paths.folders().themes)
        first = True
        while True:
            if found := await asyncio.to_thread(watch.look):
                self._take(found, silently=first)
                first = False
            await asyncio.sleep(LOOK_SECONDS)

    def read(self) -> dict[str, ThemeFile]:
        """Read the files now, because somebody asks for a theme; what is wrong is told again."""
        for _, toast in self._told.values():
            self._forget(toast)
        self._told.clear()
        try:
            self._take(read_shelf(paths.shipped_themes(), paths.folders().themes))
        except ThemeError as error:
            self._take(error)
        return self.themes

    def _take(self, found: ThemeShelf | ThemeError, *, silently: bool = False) -> None:
        problems: dict[Path | str, str]
        if isinstance(found, ThemeError):
            problems = {_SHIPPED: str(found)}
        else:
            problems = dict(found.problems.items())
            self._change(found)
        for file in [file for file in self._told if file not in problems]:
            self._forget(self._told.pop(file)[1])
            if not isinstance(file, str) and not isinstance(found, ThemeError) and file in found.paths.values():
                self._app.show_toast(Notification(f"{printable(file.name)} can be used again"))
        for file, line in problems.items():
            old = self._told.get(file)
            if old is not None and old[0] == line:
                continue
            if old is not None:
                self._forget(old[1])
            toast = None if silently else Notification(printable(line), severity="warning", timeout=_TOLD_SECONDS)
            self._told[file] = line, toast
            if toast is not None:
                self._app.show_toast(toast)

    def _change(self, found: ThemeShelf) -> None:
        """Themes whose file is gone stay while they are in use, and those whose file cannot be read stay."""
        stay = {name for name, path in self._paths.items() if path in found.problems} | {self._app.theme_in_use}
        kept = {name: theme for name, theme in self.themes.items() if name in found.themes or name in stay}
        self._paths = {
            name: path for name, path in {**self._paths, **found.paths}.items() if name in kept
        } | found.paths
        changed = [theme for name, theme in found.themes.items() if self.themes.get(name) != theme]
        self.themes = {**kept, **found.themes}
        if changed:
            self._app.use_themes(changed)

    def _forget(self, toast: Notification | None) -> None:
        if toast is not None:
            self._app.take_toast(toast)
