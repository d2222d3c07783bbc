"""A text changed in the user's editor, in a file that only its owner can read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from exlchat.ui.config.editing import EditorError, edit


def edited(text: str) -> str:
    """Open the editor on a text and wait; the text as it was left, without a newline that was added at its end.

    Raises:
        ValueError: there is no editor, it ended with an error, or what it left cannot be read; one line.
    """
    try:
        return _edited(text)
    except (EditorError, OSError, UnicodeError) as error:
        raise ValueError(str(error)) from error


def _edited(text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="exlchat-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", newline="")
        if problem := edit(file):
            raise EditorError(problem.partition(";")[0])
        new = file.read_text(encoding="utf-8")
    return new.removesuffix("\n") if not text.endswith("\n") else new
