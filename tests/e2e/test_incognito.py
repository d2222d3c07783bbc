"""Incognito in a real terminal, with the real model: what was said there is in no file of the user's folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.e2e, needs_tmux]

LOAD_SECONDS = 60.0
MARKER = "xyzzyplugh"


def test_what_was_said_incognito_is_lost_by_quitting_twice_and_stands_nowhere(tmp_path: Path) -> None:
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "exlchat", "guide", "--device", "cpu"]
    with Tmux(command, environment=environment, size=(120, 30)) as terminal:
        terminal.wait_for("context 0 of", LOAD_SECONDS)
        terminal.type("/incognito")
        terminal.keys("Enter")
        terminal.wait_for("nothing is kept")
        terminal.type(f"how do I quit? {MARKER}")
        terminal.keys("Enter")
        terminal.wait_for("tokens/s", LOAD_SECONDS)
        terminal.type(f"a draft {MARKER}")
        terminal.keys("C-q")
        terminal.wait_for("2 messages said incognito will be lost")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    said = MARKER.encode()
    assert [file for file in tmp_path.rglob("*") if file.is_file() and said in file.read_bytes()] == []
