"""A text changed in the user's editor, in a file that only its owner can read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from exlchat.ui.config.editing import edit


def edited(text: str) -> str:
    """Open the editor on a text and wait; the text as it was left, without a newline that was added at its end.

    Raises:
        EditorError: there is no editor that can be opened.
        OSError: the file cannot be written or read.
        ValueError: what was left is not UTF-8, or the editor ended with an error; one line.
    """
    with tempfile.TemporaryDirectory(prefix="exlchat-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", newline="")
        if problem := edit(file):
            raise ValueError(f"{problem.partition(';')[0]}; the message stays as it is")
        new = file.read_text(encoding="utf-8")
    return new.removesuffix("\n") if not text.endswith("\n") else new
