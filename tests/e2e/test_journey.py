"""The real program in a real terminal: ask, stop, continue, quit, come back."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.chat.model import Conversation
from exlchat.chat.store.conversations import ConversationStore
from tests.e2e.tmux import Tmux, needs_tmux
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE

pytestmark = [pytest.mark.e2e, needs_tmux]

READY = r"context 0%? of"  # the context meter of a loaded model
STOPPED = "stopped"
LOAD_SECONDS = 60.0  # two busy cores; alone it takes two


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


def exlchat(home: Path, *arguments: str, size: tuple[int, int] = (140, 40)) -> Tmux:
    command = [sys.executable, "-m", "exlchat", *arguments]
    # A model of random weights has no titles to give.
    environment = {"EXLCHAT_HOME": str(home), "LANG": "C.UTF-8", "EXLCHAT_TITLE_BY": "first line"}
    return Tmux(command, environment=environment, size=size)


def only_conversation(home: Path) -> Conversation:
    store = ConversationStore(home / "data" / "conversations.db")
    (summary,) = store.list_conversations()
    conversation = store.load(summary.id)
    store.close()
    return conversation


def wait_for_text(home: Path, more_than: int) -> str:
    """The answer's text on disk, once it is longer than that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        text = only_conversation(home).branch[-1].text
        if len(text) > more_than:
            return text
        time.sleep(0.1)
    raise AssertionError("the answer on disk does not grow")


def test_ask_stop_continue_quit_and_find_it_again(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("Tell me about lighthouses")
        terminal.keys("Enter")
        terminal.wait_for(r"tokens/s")
        terminal.keys("Escape")
        terminal.wait_for(STOPPED)
        cut = only_conversation(tmp_path).branch[-1]
        assert cut.role == "assistant"
        assert cut.status == "partial"
        assert cut.text

        terminal.type("/continue")
        terminal.keys("Enter")
        terminal.wait_until_gone(STOPPED)
        longer = wait_for_text(tmp_path, len(cut.text))
        assert longer.startswith(cut.text)
        terminal.keys("Escape")
        terminal.wait_for(STOPPED)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0

    with exlchat(tmp_path) as terminal:  # without a name: the model used last
        terminal.wait_for("endless", LOAD_SECONDS)
        terminal.wait_for("Tell me about")  # in the sidebar
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0

    with exlchat(tmp_path, "--continue") as terminal:
        screen = terminal.wait_for(STOPPED, LOAD_SECONDS)
        assert "Tell me about" in screen
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    kept = only_conversation(tmp_path)
    assert [message.role for message in kept.branch] == ["user", "assistant"]
    assert kept.branch[-1].text.startswith(longer)


def test_quitting_in_mid_answer_keeps_the_answer(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0") as terminal:
        terminal.wait_for("Write a message")
        terminal.type("Before the model is loaded")
        terminal.keys("Enter")
        terminal.wait_for(r"tokens/s", LOAD_SECONDS)
        terminal.keys("C-c")
        terminal.keys("C-c")
        assert terminal.wait_for_end() == 0
    question, answer = only_conversation(tmp_path).branch
    assert question.text == "Before the model is loaded"
    assert answer.status == "partial"
    assert answer.text


def test_after_kill_9_the_partial_answer_is_there_and_marked(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("Tell me about storms")
        terminal.keys("Enter")
        terminal.wait_for(r"tokens/s")
        wait_for_text(tmp_path, 0)
        os.kill(program_of(tmp_path), signal.SIGKILL)
        time.sleep(0.2)
    with exlchat(tmp_path, str(endless), "--continue") as terminal:
        terminal.wait_for("interrupted", LOAD_SECONDS)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    answer = only_conversation(tmp_path).branch[-1]
    assert answer.status == "partial"
    assert answer.text


def program_of(home: Path) -> int:
    """The process id of the program that runs with this home."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"exlchat" in command and b"python" in command[0] and f"EXLCHAT_HOME={home}".encode() in environment:
            return int(process.name)
    raise AssertionError("the program is not running")


def test_a_terminal_of_twenty_by_five_is_enough_and_may_grow(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), size=(20, 5)) as terminal:
        terminal.wait_for(r"endless|Write", LOAD_SECONDS)
        terminal.type("hi")
        terminal.wait_for("hi")
        terminal.resize(100, 30)
        terminal.wait_for("F1 shows keys and commands")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0


def test_a_wrong_model_leaves_one_line_and_the_terminal_as_it_was(tmp_path: Path) -> None:
    with exlchat(tmp_path, "no/such") as terminal:
        assert terminal.wait_for_end() == 1
        lines = [line for line in terminal.screen().splitlines() if line]
        assert lines[0].startswith("exlchat: no/such: no such folder")


def test_a_model_that_does_not_load_is_told_on_the_screen_and_after_it(tmp_path: Path) -> None:
    model = tmp_path / "half"
    model.mkdir()
    (model / "config.json").write_text("{}")
    line = r"half: no \*\.safetensors file is there; download the model again"
    with exlchat(
        tmp_path / "home", str(model), size=(250, 40)
    ) as terminal:  # wide, so that a long path does not wrap behind the end
        terminal.wait_for(line.replace(" ", r"\s+"), LOAD_SECONDS)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 1
        assert re.search(f"^exlchat: .*/{line}", terminal.screen(), re.MULTILINE)


@pytest.mark.skipif(not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet (make guide)")
def test_the_guide_tells_how_to_quit_and_it_works(tmp_path: Path) -> None:
    with exlchat(tmp_path, "guide") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("How do I quit?")
        terminal.keys("Enter")
        terminal.wait_for(r"(?i)ctrl\+q")
        terminal.wait_for(r"tokens/s")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0


def test_ask_in_a_terminal_leaves_nothing_but_the_answer(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, "ask", "-m", str(endless), "--max-tokens", "5", "--temperature", "0", "hi") as terminal:
        assert terminal.wait_for_end(LOAD_SECONDS) == 0
        screen = terminal.screen()
    assert "reading" not in screen
    assert len(re.findall(r"^exlchat: ", screen, re.MULTILINE)) == 1  # the notice about the template


def test_a_paste_that_is_not_utf8_and_holds_escapes_and_line_breaks_sends_nothing(tmp_path: Path) -> None:
    with exlchat(tmp_path, "guide") as terminal:
        terminal.wait_for("Write a message")
        terminal.paste(b"begins \x9b31m \xff \x1b]0;title\rmiddle \x1b[31m\r\rend of paste")
        terminal.wait_for("end of paste")
        terminal.type(" still alive")
        screen = terminal.wait_for("still alive")
        assert re.search(r"begins.*middle.*end of paste still alive", screen, re.DOTALL)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    assert ConversationStore(tmp_path / "data" / "conversations.db").list_conversations() == []
