"""The user's editor, opened on a file."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from exlchat.ui.terminal.interrupts import ends_with_program, is_ending
from exlchat.ui.terminal.terminal_state import TerminalState
from exlchat.untrusted.files import UntrustedFileError, read_bytes
from exlchat.untrusted.sanitize import normalize_newlines
from exlchat.untrusted.text import storable

_USUAL = ("editor", "nano", "vim", "vi")
_LARGEST = 64_000_000
"""Bytes of what an editor leaves."""


class EditorError(Exception):
    """There is no editor that can be opened: one line."""


def edit(file: Path) -> str | None:
    """Open the editor and wait until it ends; a line if it ended with an error. The file is the editor's own affair.

    Raises:
        EditorError: there is none.
    """
    command = _editor()
    before = TerminalState(0, 1, "")
    try:
        with subprocess.Popen([*command, str(file)]) as process, ends_with_program(process):
            code = process.wait()
        if code < 0:
            # One that was killed leaves the terminal as it had it.
            before.restore()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise EditorError(f"{command[0]} cannot be started ({reason}); set EDITOR to an editor that is here") from error
    return None if code == 0 else f"{command[0]} ended with exit code {code}; the file is as it was left"


def write(text: str) -> str:
    """Open the editor on a text and wait until it ends; what was made of it.

    Raises:
        EditorError: there is no editor, it ended with an error, or what it left cannot be read.
    """
    handle, name = tempfile.mkstemp(prefix="exlchat-", suffix=".md")
    file = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as out:
            out.write(storable(text))
        # What was saved there when a signal ended both is what was written last.
        if (problem := edit(file)) is not None and not is_ending():
            raise EditorError(f"{problem.partition(';')[0]}; the message stays as it is")
        written = read_bytes(file, largest=_LARGEST, kind="message").decode("utf-8", "replace")
    except UntrustedFileError as error:
        raise EditorError(str(error)) from None
    except OSError as error:
        raise EditorError(f"{file} cannot be used ({(error.strerror or type(error).__name__).lower()})") from error
    finally:
        file.unlink(missing_ok=True)
    written = normalize_newlines(written)
    # Editors end the last line, which nobody typed.
    return written if text.endswith("\n") else written.removesuffix("\n")


def _editor() -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        if text := os.environ.get(name, "").strip():
            try:
                return shlex.split(text)
            except ValueError as error:
                raise EditorError(f"{name} is {text!r}, which is no command ({error}); mend it") from None
    for usual in _USUAL:
        if found := shutil.which(usual):
            return [found]
    raise EditorError("no editor is known; set EDITOR, such as: export EDITOR=nano")
