"""Copying beyond OSC 52, which some terminals refuse and tmux may swallow: the desktop's own tool as well."""

from __future__ import annotations

import os
import shutil
import subprocess

_TIMEOUT_SECONDS = 2.0


def copy_with_tool(text: str) -> None:
    """Hand `text` to the clipboard tool of this desktop if there is one; may block for up to two seconds."""
    command = _tool()
    if command is None:
        return
    try:
        subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # OSC 52 has been sent in any case.
        return


def _tool() -> list[str] | None:
    candidates = [
        ("WAYLAND_DISPLAY", ["wl-copy"]),
        ("DISPLAY", ["xclip", "-selection", "clipboard"]),
        ("DISPLAY", ["xsel", "--clipboard", "--input"]),
        ("HOME", ["pbcopy"]),
    ]
    for variable, command in candidates:
        if os.environ.get(variable) and (program := shutil.which(command[0])):
            return [program, *command[1:]]
    return None


def has_tool() -> bool:
    return _tool() is not None
