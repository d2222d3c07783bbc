"""What is done from day to day, each in a real terminal: two windows, search and jump, putting in order, out and in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.chat.store.conversations import ConversationStore
from tests.chat.personas.test_card_files import png_card
from tests.e2e.test_first_minutes import SAID, closes, exlchat, quits, say
from tests.e2e.test_journey import LOAD_SECONDS, READY
from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [
    pytest.mark.e2e,
    needs_tmux,
    pytest.mark.skipif(
        not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet (make guide)"
    ),
]


def store_of(folder: Path) -> ConversationStore:
    path = folder / "home" / "data" / "conversations.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    return ConversationStore(path)


def opened(terminal: Tmux) -> None:
    terminal.wait_for(READY, LOAD_SECONDS)


def test_two_windows_on_one_conversation(tmp_path: Path) -> None:
    with exlchat(tmp_path, "guide") as one:
        opened(one)
        say(one, ("What is EXL2?", SAID))
        with exlchat(tmp_path, "guide", "--continue") as two:
            two.wait_for("What is EXL2", LOAD_SECONDS)
            two.wait_for(r"context \d+ of")
            # What is said in one window stands in the other, with a line, and is answered behind.
            say(one, ("How do I quit?", "How do I quit"))
            two.wait_for("came from another program")
            two.wait_for("How do I quit")
            one.wait_for(SAID)
            two.wait_for(r"(?i)ctrl\+q")
            # Onto what was written just now, and was not seen, nothing is sent.
            store = store_of(tmp_path)
            (here,) = store.list_conversations()
            two.type("And how do I search?")
            two.wait_for("And how do I search")
            store.add_message(here.id, "user", "seen by both")
            two.wait_for("seen by both")  # a second until the next look
            store.add_message(here.id, "user", "not seen by one")
            two.keys("Enter")
            two.wait_for("Not sent yet")
            assert "not seen by one" in two.screen()
            assert [message.text for message in store.load(here.id).branch][-1] == "not seen by one"
            two.keys("Enter")
            one.wait_for("▌ And how do I search")
            # The draft was shown here, too, and goes a moment later.
            one.wait_for("Write a message")
            store.close()
            quits(two, "/quit")
        quits(one, "/quit")


def test_a_search_lands_on_the_sentence(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    long = store.create_conversation()
    lines = [f"Paragraph {number} tells of the harbour.\n" for number in range(60)]
    lines[40] = "In the fog the *lighthouse* keeper lit the lamp.\n"
    store.add_message(long.id, "user", "\n".join(lines))
    for number in range(5):
        other = store.create_conversation()
        store.add_message(other.id, "user", f"Something else, number {number}")
    store.close()
    with exlchat(tmp_path, "guide") as terminal:
        opened(terminal)
        terminal.keys("F3")
        terminal.wait_for("Esc leaves")
        terminal.type("lighthouse keep")
        terminal.wait_for("In the fog the lighthouse keeper")
        terminal.keys("Enter")
        terminal.wait_until_gone("Search")
        screen = terminal.wait_for(r" Paragraph 39 .*\n(.*\n)*.* In the fog .*\n(.*\n)*.* Paragraph 41 ")
        assert " Paragraph 1 " not in screen
        assert re.search(r"\x1b\[7m(\x1b\[[\d;]+m)*lighthouse\x1b", terminal.coloured())
        terminal.keys("Escape")
        terminal.keys("Escape")
        quits(terminal, "/quit")


def test_conversations_are_put_in_order_and_go_out_and_in(tmp_path: Path) -> None:
    with exlchat(tmp_path, "guide") as terminal:
        opened(terminal)
        say(
            terminal,
            ("What is EXL2?", SAID),
            ("/title On formats", r"▌On formats"),
            ("/tag work later", "#later #work"),
            ("/tag -later", r"On formats #work"),
            ("/folder Letters", r"Letters/"),
            ("/ontop", "On top"),
            ("/export all.jsonl", "Saved"),
            ("/archive", "in the archive"),
            ("/new", "This is the guide"),
        )
        terminal.wait_until_gone("On formats")
        say(terminal, ("/archived", "On formats"))
        closes(terminal, "Type to narrow")
        say(terminal, ("/import all.jsonl", r"1 conversation, 2 messages"))
        terminal.wait_for("▌On formats #work")
        # The list is painted before the conversation that was opened.
        terminal.wait_for("▌ What is EXL2")
        quits(terminal, "/quit")


CARD = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Ada",
        "description": "{{char}} keeps the lighthouse.",
        "first_mes": "Come in, {{user}}.",
        "alternate_greetings": ["Who is there?"],
        "character_book": {"entries": [{"keys": ["EXL2"], "content": "LORE OF ADA", "enabled": True}]},
    },
}


def test_a_card_with_a_lorebook_and_a_group_chat(tmp_path: Path) -> None:
    (tmp_path / "ada.png").write_bytes(png_card(CARD))
    (tmp_path / "ben.json").write_text(json.dumps({"name": "Ben", "description": "x", "first_mes": ""}))
    for card in ("ada.png", "ben.json"):
        command = [sys.executable, "-m", "exlchat", "personas", "import", str(tmp_path / card)]
        environment = {**os.environ, "EXLCHAT_HOME": str(tmp_path / "home")}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    with exlchat(tmp_path, "guide") as terminal:
        opened(terminal)
        say(
            terminal,
            ("/persona ada", r" Ada\n.* Come in, User\."),
            ("What is EXL2?", SAID),
            ("/prompt", "LORE OF ADA"),
        )
        closes(terminal, "Esc closes")
        say(
            terminal,
            ("/note {{char}} is tired.", "The author's note stands 4 messages before the end"),
            ("/group add ben", "Ada, Ben speak from here on"),
            ("How do I quit, Ben?", r" Ben\n"),
        )
        terminal.wait_for(r"(?i)ctrl\+q")
        say(terminal, ("/prompt", r"Ben is tired\.[\s\S]*Ada: "))
        closes(terminal, "Esc closes")
        say(terminal, ("/speak Ada", r" Ben\n[\s\S]* Ada\n"))
        terminal.wait_for("context ")
        quits(terminal, "/quit")
    # All of it is there in the next start.
    with exlchat(tmp_path, "guide", "--continue") as terminal:
        terminal.wait_for(r" Ben\n[\s\S]* Ada\n", LOAD_SECONDS)
        say(terminal, ("/group by turn", "From now on by turn"), ("/undo", "Undone: settings"))
        say(terminal, ("/group", "whoever is named speaks, else by turn, Ben next"))
        quits(terminal, "/quit")
