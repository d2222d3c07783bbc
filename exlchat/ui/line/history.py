"""What was typed in earlier runs, in a file that only its owner can read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from exlchat import paths
from exlchat.chat.plain_text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_MOST_BYTES = 1 << 20


def open_history(path: Path | None, warn: Callable[[str], None]) -> History:
    """The history in a file; in memory where nothing is kept (`None`)."""
    return InMemoryHistory() if path is None else _PrivateHistory(path, warn)


class _PrivateHistory(FileHistory):
    """A file that cannot be read counts as empty, one that cannot be written is told once."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        super().__init__(str(path))
        self._path = path
        self._warn = warn
        self._told = False

    def load_history_strings(self) -> Iterable[str]:
        """The newest first; a file that has become long loses its older half."""
        try:
            self._shorten()
            return list(super().load_history_strings())
        except (OSError, paths.FolderError):
            return []

    def store_string(self, string: str) -> None:
        """Add to the file."""
        # What FileHistory itself would write, but with the rights given before there is anything in the file.
        lines = "".join(f"+{line}\n" for line in storable(string).split("\n"))
        try:
            paths.ensure_folder(self._path.parent)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "ab") as out:
                out.write(f"\n# exlchat\n{lines}".encode())
        except (OSError, paths.FolderError) as error:
            if not self._told:
                self._told = True
                self._warn(f"{self._path}: what you type is not kept for other runs: {error}")

    def _shorten(self) -> None:
        if not self._path.exists() or self._path.stat().st_size <= _MOST_BYTES:
            return
        data = self._path.read_bytes()[-_MOST_BYTES // 2 :]
        at = data.find(b"\n# ")
        paths.atomic_write_bytes(self._path, data[at:] if at >= 0 else b"")
