"""SIGTERM, SIGHUP and SIGQUIT in every mode: the terminal is as it was, and what was typed or said is kept."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.terminal.interrupts import LEAVE_SECONDS
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE
from tests.pseudo_terminal import Terminal

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
MODES = {"app": [], "line": ["--line"], "plain": ["--plain"]}
READY = {"app": "Write a message", "line": "you>", "plain": "You: "}


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


IN_ORDER = """
import sys
from exlchat.cli.main import program
from exlchat.ui.terminal import interrupts
interrupts.LEAVE_SECONDS = 600.0
sys.exit(program())
"""
"""An end in order takes as long as the machine needs; one that hangs does not come."""


def exlchat(home: Path, *arguments: str, **environment: str) -> Terminal:
    given = {"EXLCHAT_HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color", "VISUAL": "", **environment}
    return Terminal([sys.executable, "-c", IN_ORDER, *arguments], given)


def chat(home: Path, mode: str, model: Path, **environment: str) -> Terminal:
    return exlchat(home, str(model), *MODES[mode], "--temperature", "0", **environment)


def assert_as_it_was(terminal: Terminal, number: int) -> None:
    assert terminal.code == 128 + number, terminal.sent[-2000:]
    assert terminal.attributes() == terminal.attributes_before
    assert terminal.modes() == {}
    assert terminal.key_protocols() == 0
    assert b"Traceback" not in terminal.sent, terminal.sent[terminal.sent.index(b"Traceback") :].decode(
        errors="replace"
    )


def loaded(terminal: Terminal, mode: str) -> None:
    shown = {"app": rb"context 0 of", "line": rb"context 0%", "plain": rb"is loaded"}[mode]
    terminal.wait_for(lambda: re.search(shown, terminal.sent) is not None)


def answering(terminal: Terminal, mode: str, home: Path) -> None:
    """An answer is being written, and some of it is on disk."""
    loaded(terminal, mode)
    terminal.type("go\n" if mode == "plain" else "go\r")

    def some() -> bool:
        path = home / "data" / "conversations.db"
        with closing(ConversationStore(path)) as store:
            rows = store.list_conversations()
            return bool(rows) and len(store.load(rows[0].id).branch[-1].text) > 5

    terminal.wait_for(some)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sweep(3)
def test_what_is_typed_is_kept_and_the_terminal_is_as_it_was(
    endless: Path, tmp_path: Path, mode: str, number: int
) -> None:
    with chat(tmp_path, mode, endless) as terminal:
        terminal.wait_for(READY[mode])
        terminal.type("half a message")
        terminal.wait_for(lambda: b"half a" in terminal.sent)
        terminal.signal(number)
        terminal.wait_for_end(PATIENCE)
        assert_as_it_was(terminal, number)
    assert json.loads((tmp_path / "state" / "drafts.json").read_text()) == {"new": "half a message"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sweep(2)
def test_an_answer_is_kept_as_far_as_it_has_come(endless: Path, tmp_path: Path, mode: str) -> None:
    with chat(tmp_path, mode, endless) as terminal:
        answering(terminal, mode, tmp_path)
        terminal.signal(signal.SIGTERM)
        terminal.wait_for_end(PATIENCE)
        assert_as_it_was(terminal, signal.SIGTERM)
    with closing(ConversationStore(tmp_path / "data" / "conversations.db")) as store:
        assert store.recovered == 0, "the answer was closed"
        question, answer = store.load(store.list_conversations()[0].id).branch
        assert (question.text, answer.status) == ("go", "partial")
        assert len(answer.text) > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0.05, 0.15, 0.3, 0.5, 0.8])
@pytest.mark.sweep(5)
def test_at_any_moment_of_the_start(endless: Path, tmp_path: Path, mode: str, after: float) -> None:
    with chat(tmp_path, mode, endless) as terminal:
        time.sleep(after)
        terminal.signal(signal.SIGTERM)
        terminal.wait_for_end(PATIENCE)
        # Before the program itself runs, Python's way to die is the system's.
        assert terminal.code in (128 + signal.SIGTERM, -signal.SIGTERM), terminal.sent[-2000:]
        terminal.code = 128 + signal.SIGTERM
        assert_as_it_was(terminal, signal.SIGTERM)


WHILE_A_CLASS_IS_MADE = """
import os, signal, sys
from exlchat.cli import chat, main

class Signalling:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)

def run(arguments):
    class Owner:
        name = Signalling()

chat.run = run
sys.exit(main.program())
"""


BEHIND_A_SIGNAL = """
import os, signal, sys
from exlchat.cli import chat, main

def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise {error}

chat.run = run
sys.exit(main.program())
"""


@pytest.mark.parametrize("error", ["ValueError('a fault')", "__import__('exlchat.paths').paths.FolderError('a fault')"])
def test_what_goes_wrong_while_it_is_followed_is_told(error: str) -> None:
    command = [sys.executable, "-c", BEHIND_A_SIGNAL.format(error=error)]
    assert b"a fault" in subprocess.run(command, capture_output=True, check=False).stderr


def test_while_a_module_is_imported_whose_classes_name_their_attributes() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_A_CLASS_IS_MADE], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, b"", b"")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sweep(2)
def test_with_the_editor_open_what_was_saved_in_it_is_kept(endless: Path, tmp_path: Path, mode: str) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "from the editor" > "$1"\nstty raw -echo\necho OPEN\nexec sleep 30\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    with chat(tmp_path, mode, endless, EDITOR=str(editor)) as terminal:
        loaded(terminal, mode)
        terminal.type({"app": "\x0f", "line": "\x18\x05", "plain": "/editor\n"}[mode])
        terminal.wait_for("OPEN")
        terminal.signal(signal.SIGTERM)
        terminal.wait_for_end(PATIENCE)
        assert_as_it_was(terminal, signal.SIGTERM)
    assert json.loads((tmp_path / "state" / "drafts.json").read_text()) == {"new": "from the editor"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sweep(2)
def test_a_terminal_that_goes_ends_the_program_quietly(endless: Path, tmp_path: Path, mode: str) -> None:
    with chat(tmp_path, mode, endless) as terminal:
        answering(terminal, mode, tmp_path)
        terminal.type("half a message")
        terminal.wait_for(lambda: b"half a" in terminal.sent)
        terminal.hang_up()
        terminal.wait_for_end(PATIENCE)
        assert terminal.code == 128 + signal.SIGHUP
    with closing(ConversationStore(tmp_path / "data" / "conversations.db")) as store:
        assert store.recovered == 0
        assert len(store.load(store.list_conversations()[0].id).branch[-1].text) > 5
        if mode != "plain":
            assert store.draft(store.list_conversations()[0].id) == "half a message"


STUCK = """
import os, pathlib, sys, time
from exlchat.app.runtime import engine_jobs
from exlchat.ui.terminal import interrupts
interrupts.LEAVE_SECONDS = float(sys.argv.pop(1))
hangs = pathlib.Path(os.environ["EXLCHAT_HOME"]) / "hangs"
engine_jobs.EngineJobs.close = lambda self, seconds: (hangs.touch(), time.sleep(60))
from exlchat.cli.main import program
sys.exit(program())
"""


@pytest.mark.parametrize("mode", ["app", "line"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.sweep(3)
def test_an_end_that_hangs_is_cut_short_and_gives_the_terminal_back(
    endless: Path, tmp_path: Path, mode: str, again: bool
) -> None:
    given = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    seconds = 60.0 if again else LEAVE_SECONDS
    with Terminal([sys.executable, "-c", STUCK, str(seconds), str(endless), *MODES[mode]], given) as terminal:
        terminal.wait_for(READY[mode])
        terminal.type("half a message")
        terminal.wait_for(lambda: b"half a" in terminal.sent)
        terminal.signal(signal.SIGTERM)
        if again:
            terminal.wait_for((tmp_path / "hangs").exists)
            # Two signals within a fifth of a second are one that was sent twice.
            time.sleep(0.4)
            terminal.signal(signal.SIGTERM)
        took = terminal.wait_for_end(20)
        assert again or took > LEAVE_SECONDS - 1
        assert_as_it_was(terminal, signal.SIGTERM)
    assert json.loads((tmp_path / "state" / "drafts.json").read_text()) == {"new": "half a message"}


def test_a_signal_that_is_to_be_ignored_is(endless: Path, tmp_path: Path) -> None:
    given = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    ignoring = f"trap '' HUP; exec {sys.executable} -m exlchat --line {endless}"
    with Terminal(["sh", "-c", ignoring], given) as terminal:
        terminal.wait_for("you>")
        terminal.signal(signal.SIGHUP)
        terminal.type("still here")
        terminal.wait_for("still here")
        terminal.signal(signal.SIGTERM)
        terminal.wait_for_end(PATIENCE)
        assert_as_it_was(terminal, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.sweep(2)
def test_ask_keeps_the_answer_so_far(endless: Path, tmp_path: Path, number: int) -> None:
    with exlchat(tmp_path, "ask", "-m", str(endless), "--temperature", "0", "go") as terminal:
        terminal.wait_for(lambda: len(terminal.sent) > 400)
        terminal.signal(number)
        terminal.wait_for_end(PATIENCE)
        assert_as_it_was(terminal, number)
    with closing(ConversationStore(tmp_path / "data" / "conversations.db")) as store:
        _, answer = store.load(store.list_conversations()[0].id).branch
        assert answer.status == "partial"
        assert answer.text
