"""What is typed in one go, the key that quits behind it: nothing of it is lost, however fast it came."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

from exlchat.chat.store.conversations import ConversationStore
from tests.pseudo_terminal import Terminal

TYPED = "all of this came at once"
CTRL_Q = "\x11"


def typed_and_quit(home: Path, keys: str) -> None:
    environment = {"EXLCHAT_HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    with Terminal([sys.executable, "-m", "exlchat", "guide"], environment) as terminal:
        terminal.wait_for("Write a message")
        terminal.type(keys + CTRL_Q)
        terminal.wait_for_end()
        assert terminal.code == 0


def test_what_was_not_sent_is_there_at_the_next_start(tmp_path: Path) -> None:
    typed_and_quit(tmp_path, TYPED)
    assert json.loads((tmp_path / "state" / "drafts.json").read_text()) == {"new": TYPED}


def test_what_was_sent_is_a_message(tmp_path: Path) -> None:
    typed_and_quit(tmp_path, f"{TYPED}\r")
    with closing(ConversationStore(tmp_path / "data" / "conversations.db")) as store:
        assert store.load(store.list_conversations()[0].id).branch[0].text == TYPED
    assert f"+{TYPED}" in (tmp_path / "state" / "line_history").read_text()
