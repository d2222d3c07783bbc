"""Settings and keys in a real terminal: what is changed holds, and is there at the next start."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.e2e, needs_tmux]

LOAD_SECONDS = 60.0


def exlchat(home: Path, *arguments: str, size: tuple[int, int] = (80, 30), **environment: str) -> Tmux:
    command = [sys.executable, "-m", "exlchat", "guide", *arguments]
    return Tmux(command, environment={"EXLCHAT_HOME": str(home), "LANG": "C.UTF-8", **environment}, size=size)


def test_a_setting_and_a_key_are_changed_and_hold_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    with exlchat(tmp_path, size=(40, 24)) as terminal:
        terminal.wait_for("Write a message", LOAD_SECONDS)
        terminal.keys("F2")
        terminal.wait_for("Settings")
        terminal.keys("Down", "Down", "Down", "Down", "Down", "Enter")
        terminal.wait_for("Enter keeps")
        terminal.type("many")
        terminal.wait_for("it must be")
        terminal.keys("C-u")
        terminal.wait_for("top_k is ''")
        terminal.type("7")
        terminal.keys("Enter")
        terminal.wait_for("it holds now")
        assert tomllib.loads(file.read_text()) == {"top_k": 7}
        terminal.keys("Escape")
        terminal.wait_until_gone("Settings")
        file.write_text(file.read_text() + '[keys]\nhelp = "alt+h"\nretry = "ctrl+i"\n')
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    with exlchat(tmp_path, size=(140, 40), EXLCHAT_TOPK="9") as terminal:
        terminal.wait_for("cannot be told", LOAD_SECONDS)
        terminal.wait_for("EXLCHAT_TOPK is no")
        screen = terminal.wait_for("alt.h shows keys")
        assert "F1" not in screen
        terminal.keys("M-h")
        terminal.wait_for("Esc closes")
        terminal.keys("Escape")
        terminal.wait_until_gone("Esc closes")
        terminal.type("/set")
        terminal.keys("Enter")
        terminal.wait_for("top_k 7")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
