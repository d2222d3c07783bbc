"""What people type first who come from another program, each in a real terminal: it works, or a line says what does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exlchat import paths
from tests.e2e.test_journey import LOAD_SECONDS, READY
from tests.e2e.tmux import Tmux, needs_tmux

pytestmark = [
    pytest.mark.e2e,
    needs_tmux,
    pytest.mark.skipif(
        not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet (make guide)"
    ),
]

SAID = "began after"
"""An answer has ended: its speed is told before that."""


def exlchat(folder: Path, *arguments: str) -> Tmux:
    command = [sys.executable, "-m", "exlchat", *arguments, "--device", "cpu", "--max-tokens", "12"]
    environment = {"EXLCHAT_HOME": str(folder / "home"), "LANG": "C.UTF-8", "EXLCHAT_TITLE_BY": "first line"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return Tmux(command, environment=environment, size=(150, 45), folder=folder)


def say(terminal: Tmux, *lines: tuple[str, str]) -> None:
    """Type lines, and wait after each for a word that it has to bring: more of them could be wrapped."""
    for text, said in lines:
        terminal.type(text)
        terminal.keys("Enter")
        terminal.wait_for(said)


def closes(terminal: Tmux, mark: str = "Esc closes") -> None:
    """Leave what lies over the chat, by which `mark` is shown."""
    terminal.keys("Escape")
    terminal.wait_until_gone(mark)


def quits(terminal: Tmux, line: str) -> None:
    terminal.type(line)
    terminal.keys("Enter")
    assert terminal.wait_for_end() == 0


def test_ollama(tmp_path: Path) -> None:
    with exlchat(tmp_path, "run", "guide", "What is EXL2?") as terminal:
        terminal.wait_for(SAID, LOAD_SECONDS)
        say(terminal, ("/?", "Esc closes"))
        closes(terminal)
        say(
            terminal,
            ("/show info", "5.1"),
            ("/set parameter temperature 0.5", r"0\.5; before"),
            ("/set system You are terse", "/system TEXT"),
            ("/set verbose", "/stats"),
            ("/save mine.jsonl", "Saved"),
            ("/pull llama3", "ORG/NAME"),
            ("/load no-such-model", "no such"),
            ("/clear", "This is the guide"),
        )
        quits(terminal, "/bye")


def test_sillytavern(tmp_path: Path) -> None:
    with exlchat(tmp_path, "guide") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        say(
            terminal,
            ("/char narrator", "speaks"),
            ("What do I see?", SAID),
            ("/swipe", r"2/2"),
            ("/impersonate", "yourself"),
            ("/world lore", "character card"),
            ("/trigger", "no group speaks here"),
            ("/bg forest", "/theme"),
            ("/branches", "Type to narrow"),
        )
        closes(terminal, "Type to narrow")
        say(terminal, ("/title The cave", "The cave"), ("/newchat", "This is the guide"))
        quits(terminal, "/exit")


def test_llm(tmp_path: Path) -> None:
    with exlchat(tmp_path, "chat", "-m", "guide", "--line") as terminal:
        terminal.wait_for("context 0% of", LOAD_SECONDS)
        say(
            terminal,
            ("What is EXL2?", "tokens/s"),
            ("!multi", r"shift\+enter"),
            ("exit", "/quit"),
        )
        quits(terminal, "/quit")


def test_elia(tmp_path: Path) -> None:
    with exlchat(tmp_path, "What is EXL2?") as terminal:
        terminal.wait_for(SAID, LOAD_SECONDS)
        terminal.keys("F1")
        terminal.wait_for("Esc closes")
        closes(terminal)
        terminal.type("one")
        terminal.keys("C-j")
        terminal.type("two")
        terminal.wait_for("two")
        terminal.keys("C-n")
        terminal.wait_for("This is the guide")
        quits(terminal, "/quit")


def test_text_generation_webui(tmp_path: Path) -> None:
    with exlchat(tmp_path, "--model", "guide") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        say(
            terminal,
            ("What is EXL2?", SAID),
            ("/regenerate", "the answer would be the same at temperature 0"),
            ("/set temperature 0.7", "temperature 0.7"),
            ("/regenerate", r"2/2"),
            ("/parameters", "Esc closes"),
        )
        closes(terminal)
        say(
            terminal,
            ("/preset steady", "Preset steady|top_n_sigma"),
            ("/instruct chatml", "chatml from"),
            ("/character scholar", "scholar"),
            ("/export chat.md", "Saved"),
        )
        quits(terminal, "/exit")
