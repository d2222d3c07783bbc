"""Whether theme files have changed, asked cheaply: names, times and sizes, and only then the texts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from exlchat.ui.render.theme_files import ThemeError, ThemeShelf, read_shelf

LOOK_SECONDS: Final = 1.0
"""How often a caller is meant to ask."""
_SETTLE_SECONDS: Final = 0.05
"""How long a file must stay as it is: an editor may be in the middle of writing it."""

_Stamps = dict[Path, tuple[int, int, int]]


class ThemeWatch:
    """Looks at the two folders of themes. Not for two threads at once."""

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
