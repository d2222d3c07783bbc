"""Journeys in a real terminal: reading and copying while an answer grows, branches, other speakers, jobs of a shell."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.chat.store.conversations import ConversationStore
from tests.e2e.test_journey import LOAD_SECONDS, READY, exlchat, only_conversation
from tests.e2e.tmux import Tmux, needs_tmux
from tests.endless_model import save_endless_llama

pytestmark = [pytest.mark.e2e, needs_tmux]

needs_guide = pytest.mark.skipif(
    not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet (make guide)"
)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


def mouse(terminal: Tmux, button: int, column: int, row: int, *, up: bool = False) -> None:
    """A report of the mouse as terminals send it; columns and rows count from 1."""
    terminal.send(f"\x1b[<{button};{column};{row}{'m' if up else 'M'}".encode())


def test_reading_and_copying_while_the_answer_grows(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0", size=(100, 24)) as terminal:
        terminal.keep_clipboard()
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("FIRSTWORD " + "and many words more " * 60)
        terminal.keys("Enter")
        terminal.wait_for(r"tokens/s")
        terminal.keys("C-Home")
        screen = terminal.wait_for("▌ FIRSTWORD")
        terminal.wait_for("new lines")
        assert "▌ FIRSTWORD" in terminal.screen()  # what is read does not move
        row = next(at for at, line in enumerate(screen.splitlines(), 1) if "▌ FIRSTWORD" in line)
        column = screen.splitlines()[row - 1].index("▌ FIRSTWORD") + 3
        mouse(terminal, 0, column, row)
        mouse(terminal, 32, column + 4, row)
        mouse(terminal, 32, column + 8, row)
        mouse(terminal, 0, column + 8, row, up=True)
        terminal.keys("C-c")
        terminal.wait_for("Copied")
        assert terminal.clipboard().startswith("FIRSTWOR")
        assert "stopped" not in terminal.screen()  # with a selection ctrl+c copies
        for _ in range(30):
            mouse(terminal, 65, 60, 10)
        terminal.wait_until_gone("▌ FIRSTWORD")
        # The answer may grow faster than the wheel turns.
        terminal.keys("C-End")
        terminal.keys("Escape")
        terminal.wait_for("stopped")
        terminal.keys("C-y")
        terminal.wait_for("Copied the last answer")
        assert terminal.clipboard() == only_conversation(tmp_path).branch[-1].text
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0


def test_a_prompt_is_edited_and_a_branch_opened(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0", "--max-tokens", "8") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("Tell me of storms")
        terminal.keys("Enter")
        terminal.wait_for("/continue")
        terminal.keys("C-Up")
        terminal.wait_for("e edit")
        terminal.keys("Up", "e")
        terminal.wait_for("Editing your message")
        terminal.type(" and rain")
        terminal.keys("Enter")
        terminal.wait_for("‹2/2›")
        terminal.wait_for("/continue")
        terminal.keys("C-Up")
        terminal.wait_for("e edit")
        terminal.keys("Up", "Left")
        terminal.wait_for("‹1/2›")
        terminal.keys("b")
        terminal.wait_for("This is a new conversation")
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    store = ConversationStore(tmp_path / "data" / "conversations.db")
    branched, first = sorted(store.list_conversations(), key=lambda one: one.message_count)
    assert [one.text for one in store.load(branched.id).branch] == ["Tell me of storms"]
    prompts = [one.text for one in store.read_tree(first.id).messages if one.role == "user"]
    assert prompts == ["Tell me of storms", "Tell me of storms and rain"]
    store.close()


@needs_guide
def test_another_persona_template_and_model_speak_in_one_conversation(endless: Path, tmp_path: Path) -> None:
    with exlchat(tmp_path, str(endless), "--temperature", "0", "--max-tokens", "8") as terminal:
        terminal.wait_for(READY, LOAD_SECONDS)
        terminal.type("/persona coder")
        terminal.keys("Enter")
        terminal.wait_for("Coder speaks from here on")
        terminal.type("/template chatml")
        terminal.keys("Enter")
        terminal.wait_for("The prompt template of this conversation is chatml")
        terminal.type("one")
        terminal.keys("Enter")
        terminal.wait_for("/continue")
        terminal.type("/model guide")
        terminal.keys("Enter")
        terminal.wait_for(r"guide +Coder +context of 2,048", LOAD_SECONDS)
        terminal.type("two")
        terminal.keys("Enter")
        wait_for_answers(tmp_path, 2)
        terminal.keys("C-q")
        assert terminal.wait_for_end() == 0
    first, second = (one.record for one in only_conversation(tmp_path).branch if one.role == "assistant")
    assert first is not None
    assert (first.model, first.template, first.persona) == ("endless", "chatml", "Coder")
    assert second is not None
    assert (second.model, second.persona) == ("guide", "Coder")


def wait_for_answers(home: Path, many: int) -> None:
    """Until so many answers have been closed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answers = [one for one in only_conversation(home).branch if one.role == "assistant"]
        if len(answers) == many and all(one.status != "streaming" for one in answers):
            return
        time.sleep(0.1)
    raise AssertionError(f"there are not {many} answers")


def test_the_line_mode_is_a_job_of_the_shell_and_a_pipe_gets_the_answer_alone(endless: Path, tmp_path: Path) -> None:
    program = f"{sys.executable} -m exlchat"
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C.UTF-8", "PS1": "shell> "}
    with Tmux(["bash", "--norc", "-i"], environment=environment) as terminal:
        terminal.wait_for("shell>")
        terminal.type(f"clear; {program} --line {endless} --temperature 0")
        terminal.keys("Enter")
        terminal.wait_for(r"context 0% of", LOAD_SECONDS)
        terminal.type("half a line")
        terminal.wait_for("you> half a line")
        terminal.keys("C-z")
        terminal.wait_for(r"Stopped(.|\n)*shell>\s*$")
        terminal.type("echo in the $((40 + 2)) shell")
        terminal.keys("Enter")
        terminal.wait_for("in the 42 shell")
        terminal.type("fg")
        terminal.keys("Enter")
        terminal.wait_for(r"you> half a line\s+(.|\n)*context 0%")
        terminal.type(" more")
        terminal.keys("Enter")
        terminal.wait_for("tokens/s")
        terminal.keys("Escape")
        terminal.wait_for("stopped")
        terminal.keys("C-d")
        terminal.wait_for(r"shell>\s*$")
        asked = f"echo hi | {program} ask -m {endless} --max-tokens 5 --temperature 0 2> {tmp_path}/said"
        terminal.type(f"clear; {asked} | wc -l; echo code ${{PIPESTATUS[1]}}")
        terminal.keys("Enter")
        screen = terminal.wait_for(r"code \d", LOAD_SECONDS)
        assert re.search(r"^1\ncode 0$", screen, re.MULTILINE), screen
        terminal.keys("C-d")
        terminal.wait_for_end()
    store = ConversationStore(tmp_path / "data" / "conversations.db")
    assert sorted(one.title for one in store.list_conversations()) == ["half a line more", "hi"]
    store.close()


@needs_guide
def test_a_terminal_of_any_language_without_colours_and_mouse(tmp_path: Path) -> None:
    environment = {"EXLCHAT_HOME": str(tmp_path), "LANG": "C", "LC_ALL": "C", "NO_COLOR": "1", "TERM": "vt220"}
    command = [sys.executable, "-m", "exlchat", "guide"]
    with Tmux(command, environment=environment, size=(400, 120)) as terminal:
        terminal.wait_for("Write a message|You:")
        terminal.type("hi there")
        terminal.wait_for("hi there")
        terminal.keys("C-c", "C-c")
        assert terminal.wait_for_end() == 0
        assert "Traceback" not in terminal.screen()
