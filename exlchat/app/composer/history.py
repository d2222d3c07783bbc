"""What was typed in this run and in earlier ones, in a file that only its owner can read.

The file is the one of prompt_toolkit's `FileHistory`: an empty line, one that begins with "#", and each line of the
text behind a "+".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import UntrustedFileError, open_to_append, read_bytes
from exlchat.untrusted.text import storable

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1 << 20
_LARGEST = 64 << 20
"""Bytes of a file that is shortened; a larger one is none of ours."""
_LONGEST = 1 << 15
"""Characters. What is longer stands in its conversation and would push all the rest out of the file."""


class TypedHistory:
    """A file that cannot be read counts as empty, one that cannot be written is told once."""

    def __init__(self, path: Path | None) -> None:
        """`path` `None` keeps what is typed for this run only."""
        self._path = path
        self._texts: list[str] | None = None if path is not None else []
        self._told = False

    def texts(self) -> list[str]:
        """What was typed, oldest first, each text once where it was typed last; a long file loses its older half."""
        if self._texts is None:
            self._texts = self._read()
        return list(self._texts)

    def add(self, text: str) -> str | None:
        """Keep what was typed; the first time that this fails, a line that says so."""
        text = storable(text)
        if not text.strip() or len(text) > _LONGEST:
            return None
        if self._texts is not None:
            self._texts = [*(one for one in self._texts if one != text), text]
        return None if self._path is None else self._append(self._path, text)

    def _append(self, path: Path, text: str) -> str | None:
        lines = "".join(f"+{line}\n" for line in text.split("\n"))
        try:
            paths.ensure_folder(path.parent)
            with open_to_append(path) as out:
                out.write(f"\n# exlchat\n{lines}".encode())
        except (OSError, UntrustedFileError, paths.FolderError) as error:
            if not self._told:
                self._told = True
                return f"{path}: what you type is not kept for other runs: {error}"
        return None

    def _read(self) -> list[str]:
        assert self._path is not None
        try:
            data = self._shortened(self._path, read_bytes(self._path, largest=_LARGEST, kind="history"))
        except (UntrustedFileError, paths.FolderError):
            return []
        texts: dict[str, None] = {}
        begun: list[str] = []
        for line in [*data.decode("utf-8", "replace").split("\n"), ""]:
            if line.startswith("+"):
                begun.append(line[1:])
            elif begun:
                text = "\n".join(begun)
                texts.pop(text, None)
                texts[text] = None
                begun = []
        return list(texts)

    @staticmethod
    def _shortened(path: Path, data: bytes) -> bytes:
        if len(data) <= _MOST_BYTES:
            return data
        data = data[-_MOST_BYTES // 2 :]
        at = data.find(b"\n# ")
        data = data[at:] if at >= 0 else b""
        paths.atomic_write_bytes(path, data)
        return data
