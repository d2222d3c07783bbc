"""The user's editor in a real terminal, and what was typed in an earlier run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.e2e, needs_tmux]

LOAD_SECONDS = 60.0


def script(folder: Path, text: str) -> str:
    file = folder / "editor.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_the_message_is_written_in_the_editor_and_comes_back_in_the_next_run(tmp_path: Path) -> None:
    editor = script(tmp_path, 'cat "$1"; echo " EDITOR HERE"; read line; printf "%s" " and $line" >> "$1"')
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8", "EDITOR": editor, "VISUAL": ""}
    command = [sys.executable, "-m", "exlchat", "guide"]
    with Tmux(command, environment=environment) as terminal:
        terminal.wait_for("Write a message", LOAD_SECONDS)
        terminal.type("help")
        terminal.keys("C-o")
        terminal.wait_for("help EDITOR HERE")
        terminal.type("more")
        terminal.keys("Enter")
        terminal.wait_for("│ help and more")
        terminal.type("!")
        terminal.keys("Enter")
        terminal.wait_for("help and more!")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    with Tmux([*command], environment=environment) as terminal:
        terminal.wait_for("Write a message", LOAD_SECONDS)
        terminal.keys("C-n", "Up")
        terminal.wait_for("│ help and more!")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
