"""The line mode in a real terminal, with the shipped guide and with a model that never ends."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.chat.store.conversations import ConversationStore
from tests.e2e.test_journey import LOAD_SECONDS, only_conversation, program_of, wait_for_text
from tests.e2e.tmux import Tmux, needs_tmux
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.e2e,
    needs_tmux,
    pytest.mark.skipif(
        not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet (make guide)"
    ),
]

READY = r"context 0% of"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


def exlchat(home: Path, *arguments: str, size: tuple[int, int] = (100, 30), **environment: str) -> Tmux:
    command = [sys.executable, "-m", "exlchat", *arguments]
    return Tmux(command, environment={"EXLCHAT_HOME": str(home), "LANG": "C.UTF-8", **environment}, size=size)


def test_ask_the_guide_and_quit_with_the_answer_in_the_scrollback(tmp_path: Path) -> None:
    with exlchat(tmp_path, "--line", "guide") as terminal:
        terminal.wait_for("you>")  # before the model is there
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("How do I quit?")
        terminal.keys("Enter")
        terminal.wait_for(r"(?i)ctrl\+q")
        terminal.wait_for("tokens/s")
        terminal.keys("C-d")
        assert terminal.wait_for_end() == 0
        screen = terminal.screen()
    assert screen.count("you> How do I quit?") == 1
    assert "tokens/s" not in screen  # the toolbar has gone, the conversation stays
    assert re.search(r"(?i)ctrl\+q", screen)
    assert [message.role for message in only_conversation(tmp_path).branch] == ["user", "assistant"]
    history = tmp_path / "state" / "line_history"
    assert "How do I quit?" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_stop_queue_and_edit_the_line(endless: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "written by the editor" > "$1"\n')
    editor.chmod(0o700)
    with exlchat(tmp_path, str(endless), "--line", "--temperature", "0", EDITOR=str(editor), VISUAL="") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("Tell me abuot storms")
        terminal.keys("M-b", "Left", "BSpace", "BSpace", "BSpace", "BSpace")
        terminal.type("bout")
        terminal.keys("Enter")
        terminal.wait_for("tokens/s")
        terminal.type("and then")
        terminal.keys("Enter")
        terminal.wait_for("waits  and then")
        terminal.keys("C-c")
        terminal.wait_for(r"\(stopped · /continue goes on\)")
        terminal.wait_for("you> and then")
        wait_for_text(tmp_path, 0)
        terminal.keys("Escape")
        terminal.wait_until_gone("waits  ")
        time.sleep(0.5)
        terminal.keys("C-x", "C-e")
        terminal.wait_for("you> written by the editor")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    branch = only_conversation(tmp_path).branch
    assert branch[0].text == "Tell me about storms"
    assert branch[1].status == "partial"
    assert branch[1].text
    assert branch[2].text == "and then"


def test_after_kill_9_the_text_is_there_and_the_terminal_can_be_used(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--line", "--temperature", "0") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("Tell me about storms")
        terminal.keys("Enter")
        terminal.wait_for("tokens/s")
        wait_for_text(tmp_path, 0)
        os.kill(program_of(tmp_path), signal.SIGKILL)
        terminal.wait_for_end()
    kept = only_conversation(tmp_path).branch[-1].text
    assert kept
    with exlchat(tmp_path, str(endless), "--line", "--continue") as terminal:
        terminal.wait_for(r"\(interrupted · /continue goes on\)")
        terminal.wait_for("you> Tell me about storms")
        terminal.keys("C-c")
        terminal.keys("C-c")
        assert terminal.wait_for_end() == 0


def test_shift_enter_and_pastes_make_lines_and_send_nothing(tmp_path: Path) -> None:
    with exlchat(tmp_path, "--line", "guide") as terminal:
        terminal.wait_for("you>")
        terminal.paste(b"one\rtwo \x1b[31m\rthree")
        terminal.wait_for("three")
        terminal.keys("M-Enter")
        terminal.type("four")
        terminal.keys("C-j")
        terminal.type("five")
        screen = terminal.wait_for("five")
        assert re.search(r"you> one\n +… two ␛\[31m\n +… three\n +… four\n +… five", screen)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0


@pytest.mark.parametrize("size", [(20, 5), (250, 60)])
def test_small_and_large_terminals(tmp_path: Path, size: tuple[int, int]) -> None:
    with exlchat(tmp_path, "--line", "guide", size=size) as terminal:
        terminal.wait_for("you>")
        terminal.type("/he")
        terminal.wait_for("/help")
        terminal.resize(60, 20)
        terminal.keys("Enter", "Enter")
        terminal.wait_for(r"//text: Send")  # the last line: the list is longer than the screen
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0


@pytest.mark.parametrize(("term", "why"), [("dumb", "TERM is dumb"), ("", "TERM is not set")])
def test_a_dumb_terminal_gets_plain_lines_and_is_told_so(tmp_path: Path, term: str, why: str) -> None:
    with exlchat(tmp_path, "guide", TERM=term) as terminal:
        screen = terminal.wait_for("You:")
        assert f"Warning: {why}, which the app needs; this is exlchat --plain" in screen
        terminal.keys("C-d")
        assert terminal.wait_for_end() == 0


def test_plain_lines_hold_no_escape_sequence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # `script` has a terminal of its own and writes down every byte that the program sends to it.
    command = f"{sys.executable} -m exlchat --plain guide"
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8"}
    with Tmux(["script", "-q", "-f", "-c", command, str(log)], environment=environment, size=(100, 30)) as terminal:
        terminal.wait_for("Note: guide is loaded.", LOAD_SECONDS)
        terminal.type("How do I quit?")
        terminal.keys("Enter")
        terminal.wait_for("guide says:")
        terminal.wait_for(r"(?i)guide says:\n.*ctrl\+q(.|\n)*\nYou:")
        terminal.type("/stats")
        terminal.keys("Enter")
        terminal.wait_for(r"Note: .* tok/s")
        terminal.keys("C-d")
        terminal.wait_for_end()
    said = "".join(log.read_text().splitlines(keepends=True)[1:-2])  # without what script itself notes
    assert "guide says:" in said
    assert {one for one in said if ord(one) < 32 or 0x7F <= ord(one) < 0xA0} <= {"\r", "\n"}


def test_plain_ctrl_c_stops_and_twice_quits(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--plain", "--temperature", "0") as terminal:
        terminal.wait_for("is loaded", LOAD_SECONDS)
        terminal.type("go")
        terminal.keys("Enter")
        terminal.wait_for("endless says:")
        wait_for_text(tmp_path, 0)
        terminal.keys("C-c")
        terminal.wait_for(r"\(stopped · /continue goes on\)")
        time.sleep(2.1)
        terminal.keys("C-c")
        terminal.wait_for(r"Note: ctrl\+c again quits")
        terminal.keys("C-c")
        assert terminal.wait_for_end() == 0
    assert only_conversation(tmp_path).branch[-1].status == "partial"


@pytest.mark.parametrize("mode", [[], ["--line"], ["--plain"]])
def test_a_window_that_is_closed_keeps_what_was_said(endless: Path, tmp_path: Path, mode: list[str]) -> None:
    with exlchat(tmp_path, str(endless), *mode, "--temperature", "0") as terminal:
        terminal.wait_for("is loaded" if mode == ["--plain"] else r"context 0%? of", LOAD_SECONDS)
        terminal.type("go")
        terminal.keys("Enter")
        terminal.wait_for("endless says:" if mode == ["--plain"] else r"tokens/s")
        wait_for_text(tmp_path, 0)
        program = program_of(tmp_path)
        terminal.close_window()
        wait_until_ended(program)
    with closing(ConversationStore(tmp_path / "data" / "conversations.db")) as store:
        assert store.recovered == 0, "the answer was closed in order"
        answer = store.load(store.list_conversations()[0].id).branch[-1]
        assert answer.status == "partial"
        assert answer.text


def wait_until_ended(process: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)
