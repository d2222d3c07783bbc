"""Tabs in a real terminal, by the keys that it and tmux pass on; also where letters are vi's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [pytest.mark.e2e, needs_tmux]

LOAD_SECONDS = 60.0


@pytest.mark.parametrize("editing", ["emacs", "vi"])
def test_keys_go_from_tab_to_tab_and_the_next_start_has_them(tmp_path: Path, editing: str) -> None:
    (tmp_path / "data").mkdir()
    store = ConversationStore(tmp_path / "data" / "conversations.db")
    for text in ("said in one", "said in two"):
        ident = store.create_conversation().id
        store.add_message(ident, "user", text)
        store.rename(ident, text.split()[-1])
    store.close()
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8"}
    if editing == "vi":
        environment["EXLCHAT_EDITING"] = "vi"
    command = [sys.executable, "-m", "exlchat", "guide"]
    with Tmux(command, environment=environment, size=(80, 24)) as terminal:
        terminal.wait_for("Write a message", LOAD_SECONDS)
        terminal.type("/open 1")
        terminal.keys("Enter")
        terminal.wait_for("▌ said in two")
        terminal.type("/tab 2")
        terminal.keys("Enter")
        terminal.wait_for("▌ said in one")
        if editing == "vi":
            terminal.type("x")
            terminal.keys("Escape")
            terminal.wait_for("NORMAL")
        terminal.keys("M-n")
        terminal.wait_for("▌ said in two")
        terminal.keys("M-p")
        terminal.wait_for("▌ said in one")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    with Tmux(command, environment=environment, size=(80, 24)) as terminal:
        terminal.wait_for("▌ said in one", LOAD_SECONDS)
        terminal.keys("M-w")
        terminal.wait_for("▌ said in two")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
