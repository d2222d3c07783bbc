"""The themes of the running program: files are followed while they are edited, and broken ones are told of once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from exlchat import paths
from exlchat.config.themes import ThemeError, ThemeShelf, read_shelf
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from exlchat.config.themes import ThemeFile

_SHIPPED = "the installation"
LOOK_SECONDS: Final = 1.0
"""How often the files are looked at."""
_SETTLE_SECONDS: Final = 0.05
"""How long a file must stay as it is: an editor may be in the middle of writing it."""

_Stamps = dict[Path, tuple[int, int, int]]


class ThemedFront(Protocol):
    @property
    def theme_in_use(self) -> str: ...

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Know these from now on in the place of others of their names, and show them where they are in use."""

    def tell_of_theme(self, line: str, *, warning: bool) -> Callable[[], None]:
        """Say something about a file; what is given takes the line away, where that can be."""


class LiveThemes:
    """All themes by name, as last read without fault."""

    def __init__(self, front: ThemedFront, themes: dict[str, ThemeFile]) -> None:
        self.themes = themes
        self._front = front
        self._paths: dict[str, Path] = {}
        self._told: dict[Path | str, tuple[str, Callable[[], None]]] = {}
        """By file, what was said to be wrong with it, and what takes that line away."""

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
        for _, take_away in self._told.values():
            take_away()
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
            self._told.pop(file)[1]()
            if not isinstance(file, str) and not isinstance(found, ThemeError) and file in found.paths.values():
                self._front.tell_of_theme(f"{printable(file.name)} can be used again", warning=False)
        for file, line in problems.items():
            old = self._told.get(file)
            if old is not None and old[0] == line:
                continue
            if old is not None:
                old[1]()
            told = _nothing if silently else self._front.tell_of_theme(printable(line), warning=True)
            self._told[file] = line, told

    def _change(self, found: ThemeShelf) -> None:
        """Themes whose file is gone stay while they are in use, and those whose file cannot be read stay."""
        stay = {name for name, path in self._paths.items() if path in found.problems} | {self._front.theme_in_use}
        kept = {name: theme for name, theme in self.themes.items() if name in found.themes or name in stay}
        self._paths = {
            name: path for name, path in {**self._paths, **found.paths}.items() if name in kept
        } | found.paths
        changed = [theme for name, theme in found.themes.items() if self.themes.get(name) != theme]
        self.themes = {**kept, **found.themes}
        if changed:
            self._front.use_themes(changed)


def _nothing() -> None:
    """The start said it."""


class ThemeWatch:
    """Whether theme files have changed, asked cheaply: names, times and sizes, and only then the texts.

    Not for two threads at once.
    """

    def __init__(self, shipped_folder: Path, user_folder: Path) -> None:
        self._folders = (shipped_folder, user_folder)
        self._read: _Stamps | None = None

    def look(self) -> ThemeShelf | ThemeError | None:
        """What the folders hold, or what is wrong with the shipped one; `None` while nothing has changed."""
        stamps = self._stamps()
        if stamps == self._read:
            return None
        time.sleep(_SETTLE_SECONDS)
        if self._stamps() != stamps:
            return None
        self._read = stamps
        try:
            return read_shelf(*self._folders)
        except ThemeError as error:
            return error

    def _stamps(self) -> _Stamps:
        found: _Stamps = {}
        for folder in self._folders:
            for path in folder.glob("*.toml"):
                try:
                    status = path.stat()
                except OSError:
                    found[path] = (0, 0, 0)
                else:
                    found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return found
