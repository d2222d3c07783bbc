"""`exlchat ask` with a real model, a real database and real pipes."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.model import Conversation
from exlchat.chat.store import database
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from exlchat.llm.events import Finished, GenerationStats
from exlchat.ui.headless.output import JsonLinesOutput, TextOutput
from exlchat.ui.terminal.typed_text import PromptInputError, read_prompt
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE

STATS = {
    "prompt_tokens",
    "cached_tokens",
    "new_tokens",
    "time_to_first_token",
    "prefill_seconds",
    "decode_seconds",
    "tokens_per_second",
    "seed",
    "drafted",
    "accepted",
    "rewound",
    "rows",
    "exact",
    "decode_path",
}


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def ask(endless: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs `exlchat ask` in this process: exit code, stdout, stderr."""

    def run(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        given = io.BytesIO(b"" if stdin is None else stdin)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
        greedy = ["--temperature", "0", "--device", "cpu"]
        code = cli.main(["ask", "-m", str(endless), *greedy, *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def conversations(home: Path) -> list[Conversation]:
    store = ConversationStore(home / "data" / "conversations.db")
    found = [store.load(one.id) for one in store.list_conversations()]
    store.close()
    return found


# The prompt


@pytest.mark.parametrize(
    ("argument", "stdin", "prompt"),
    [
        ("why?", None, "why?"),
        (None, b"from a pipe\n", "from a pipe"),
        ("Summarise:", b"line 1\nline 2\n\n", "Summarise:\n\nline 1\nline 2"),
        ("why?", b"", "why?"),
        ("why?", b" \n", "why?"),
        (None, "\ufeffmark, zw\u00f6lf".encode(), "mark, zw\u00f6lf"),
        (None, b"  indented\n", "  indented"),
    ],
)
def test_the_prompt_is_the_argument_then_a_blank_line_then_stdin(
    argument: str | None, stdin: bytes | None, prompt: str
) -> None:
    assert read_prompt(argument, None if stdin is None else io.BytesIO(stdin)) == prompt


def test_no_prompt_is_a_usage_error(ask: Any) -> None:
    code, out, err = ask()
    assert (code, out) == (2, "")
    assert err == "exlchat: there is no prompt; give it as an argument or on standard input\n"


def test_stdin_that_is_not_utf8_names_the_byte(ask: Any) -> None:
    code, out, err = ask(stdin=b"caf\xe9 au lait")
    assert (code, out) == (2, "")
    assert err == "exlchat: standard input is not UTF-8 (byte 3); convert it first, for example with iconv\n"


def test_an_argument_that_is_not_utf8_is_named_too() -> None:
    with pytest.raises(PromptInputError, match="character 3"):
        read_prompt("caf\udce9", None)


# The answer


def test_only_the_answer_is_on_stdout_and_it_ends_with_a_newline(ask: Any) -> None:
    code, out, err = ask("hello", "--max-tokens", "12", "--no-save")
    _, events, _ = ask("hello", "--max-tokens", "12", "--no-save", "--jsonl")
    text = json.loads(events.splitlines()[-1])["text"]
    assert code == 0
    assert text
    assert out == (text if text.endswith("\n") else text + "\n")
    assert [line for line in err.splitlines() if "no chat template of its own" not in line] == []


def test_a_model_without_a_template_is_told_of_once(ask: Any) -> None:
    errs = [ask("hello", "--max-tokens", "2", *more)[2] for more in ((), (), ("--no-save",))]
    assert ["no chat template of its own" in err for err in errs] == [True, False, False]


def test_jsonl_is_one_event_a_line_and_ends_with_the_statistics(ask: Any) -> None:
    code, out, _ = ask("hello", "--max-tokens", "9", "--seed", "11", "--jsonl")
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["type"] for event in events]
    assert code == 0
    assert kinds[0] == "start"
    assert kinds[-1] == "finished"
    assert {"prefill_progress", "text"} <= set(kinds)
    assert events[0]["model"] == "endless"
    last = events[-1]
    assert "".join(event["text"] for event in events if event["type"] == "text") == last["text"]
    assert last["reason"] == "max_new_tokens"
    assert set(last["stats"]) == STATS
    assert last["stats"]["new_tokens"] == 9
    assert last["stats"]["seed"] == 11
    assert last["stats"]["prompt_tokens"] == events[0]["prompt_tokens"]


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(ask: Any) -> None:
    draw = ["--temperature", "1", "--max-tokens", "16", "--no-save", "hello"]
    first = ask(*draw, "--seed", "1")[1]
    assert ask(*draw, "--seed", "1")[1] == first
    assert ask(*draw, "--seed", "2")[1] != first


def test_stop_ends_the_answer_before_the_text(ask: Any) -> None:
    whole = ask("hello", "--max-tokens", "30", "--no-save", "--jsonl")[1]
    text = json.loads(whole.splitlines()[-1])["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    out = ask("hello", "--max-tokens", "30", "--no-save", "--jsonl", "--stop", stop)[1]
    last = json.loads(out.splitlines()[-1])
    assert last["reason"] == "stop_string"
    assert last["text"] == text[: text.index(stop)]


# Keeping it


def test_prompt_and_answer_become_a_conversation(ask: Any, home: Path) -> None:
    out = ask("first line\nsecond", "--system", "You are brief.", "--max-tokens", "8", "--jsonl")[1]
    start, last = json.loads(out.splitlines()[0]), json.loads(out.splitlines()[-1])
    (kept,) = conversations(home)
    assert kept.id == start["conversation"]
    assert kept.title == "first line"
    assert [(message.role, message.text, message.status) for message in kept.branch] == [
        ("system", "You are brief.", "complete"),
        ("user", "first line\nsecond", "complete"),
        ("assistant", last["text"], "complete"),
    ]


def test_no_save_leaves_no_database(ask: Any, home: Path) -> None:
    out = ask("hello", "--max-tokens", "4", "--no-save", "--jsonl")[1]
    assert json.loads(out.splitlines()[0])["conversation"] is None
    assert not list(home.rglob("*.db"))


def test_no_save_writes_no_pages_and_leaves_those_that_are_there(ask: Any, home: Path) -> None:
    secret = "My secret diagnosis is gout. " * 8
    assert ask(secret, "--max-tokens", "2", "--no-save")[0] == 0
    assert not list(home.rglob("*.safetensors"))
    assert ask(secret, "--max-tokens", "2")[0] == 0
    assert list(home.rglob("*.safetensors"))
    before = {file: file.stat().st_mtime_ns for file in home.rglob("*.safetensors")}
    assert ask(secret + " and more of it" * 20, "--max-tokens", "2", "--no-save")[0] == 0
    assert {file: file.stat().st_mtime_ns for file in home.rglob("*.safetensors")} == before


@pytest.mark.parametrize("save", [[], ["--no-save"]])
def test_no_room_on_disk_removes_the_pages_of_earlier_runs(ask: Any, home: Path, save: list[str]) -> None:
    ask("How many pages are there? " * 8, "--max-tokens", "2")
    assert list(home.rglob("*.safetensors"))
    assert ask("hello", "--max-tokens", "2", "--disk-gb", "0", *save)[0] == 0
    end = time.monotonic() + PATIENCE
    while list(home.rglob("*.safetensors")) and time.monotonic() < end:
        time.sleep(0.01)
    assert not list(home.rglob("*.safetensors"))


def test_a_database_that_cannot_be_written_is_a_warning(ask: Any, home: Path) -> None:
    home.mkdir()
    (home / "data").write_text("in the way")
    code, out, err = ask("hello", "--max-tokens", "4")
    assert code == 0
    assert out
    assert "the answer will not be saved" in err
    assert str(home / "data") in err


def test_a_database_that_another_program_holds_is_a_warning(
    ask: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("first", "--max-tokens", "4")
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    holder = sqlite3.connect(home / "data" / "conversations.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    code, out, err = ask("second", "--max-tokens", "4")
    holder.close()
    assert code == 0
    assert out
    assert "the answer will not be saved" in err
    assert [one.title for one in conversations(home)] == ["first"]


def test_a_prompt_that_does_not_fit_is_exit_code_3_and_leaves_no_conversation(ask: Any, home: Path) -> None:
    code, out, err = ask("word " * 400, "--context", "64")
    assert (code, out) == (3, "")
    assert "64" in err
    assert conversations(home) == []


def test_a_template_that_refuses_is_one_line(ask: Any, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ raise_exception('no questions today') }}")
    code, out, err = ask("hello", "--template", str(template))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "no questions today" in err


# Terminals and pipes


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def finished(text: str) -> Finished:
    return Finished("stop_token", GenerationStats(1, 0, 1, 0.1, 0.1, 0.0, 0), text, (5,))


@pytest.mark.parametrize("stream", [FakeTerminal(), io.StringIO()], ids=["a terminal", "a pipe"])
def test_neither_a_terminal_nor_a_pipe_gets_control_characters(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    output = TextOutput()
    # However a line's end is cut, it is one; a "\r" alone is one too.
    for piece in ("a\x1b[2Jb\r", "\n\tc\r", "d\u202ee\x9b31m\r\n", "\r"):
        output.text(piece)
    output.finish(finished(""))
    assert stream.getvalue() == "a\u241b[2Jb\n\tc\nd\ufffde\ufffd31m\n\n"


def test_json_is_exact_and_what_it_holds_steers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = "a\x1b[2Jb\u202ed\x9b31m\x7f\u00f6\U000e0041\udcff\r\n"
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    JsonLinesOutput().text(nasty)
    shown = stream.getvalue().removesuffix("\n")
    assert json.loads(shown) == {"type": "text", "text": nasty}
    assert shown.replace("\u00f6", "").isascii()
    assert shown.isprintable()
    assert "\u00f6" in shown


def start(endless: Path, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "exlchat",
        "ask",
        "-m",
        str(endless),
        "--temperature",
        "0",
        "--device",
        "cpu",
    ]
    # Unbuffered, because `communicate` does not see what a buffered `read` has taken ahead.
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([*command, *arguments, "hello"], bufsize=0, **streams)


def complaints(stderr: bytes) -> list[str]:
    return [line for line in stderr.decode().splitlines() if "no chat template of its own" not in line]


def test_a_reader_that_leaves_ends_it_quietly_and_the_text_is_kept(endless: Path, home: Path) -> None:
    program = start(endless, stdout=subprocess.PIPE)
    assert program.stdout is not None
    read = program.stdout.read(50)
    program.stdout.close()
    _, stderr = program.communicate(timeout=60)
    assert program.returncode == 141
    assert complaints(stderr) == []
    (kept,) = conversations(home)
    assert kept.branch[-1].status == "partial"
    assert kept.branch[-1].text.encode().startswith(read)


def test_ctrl_c_keeps_what_was_said(endless: Path, home: Path) -> None:
    program = start(endless, stdout=subprocess.PIPE)
    assert program.stdout is not None
    first = program.stdout.read(50)
    program.send_signal(signal.SIGINT)
    rest, stderr = program.communicate(timeout=60)
    assert program.returncode == 130
    assert complaints(stderr) == []
    (kept,) = conversations(home)
    assert kept.branch[-1].status == "partial"
    assert (first + rest).decode().removesuffix("\n") == kept.branch[-1].text.removesuffix("\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(endless: Path) -> None:
    with open("/dev/full", "wb") as full:
        program = start(endless, "--max-tokens", "5", stdout=full)
        _, stderr = program.communicate(timeout=60)
    assert program.returncode == 1
    assert complaints(stderr) == [
        "exlchat: standard output cannot be written (no space left on device); the answer ends here"
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_behind_stderr_does_not_cost_the_answer(endless: Path) -> None:
    with open("/dev/full", "wb") as full:
        program = start(endless, "--max-tokens", "5", stdout=subprocess.PIPE, stderr=full)
        stdout, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    assert stdout.strip()


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not show what a process has mapped")
@pytest.mark.parametrize("delay", [0.0, 0.175, 0.2, 0.225])
@pytest.mark.sweep(2)
def test_ctrl_c_while_torch_is_imported_ends_it_at_once_and_quietly(endless: Path, home: Path, delay: float) -> None:
    program = start(endless, stdout=subprocess.PIPE)
    maps = Path(f"/proc/{program.pid}/maps")
    deadline = time.monotonic() + 30
    while "libtorch_cpu" not in maps.read_text() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay)
    program.send_signal(signal.SIGINT)
    stdout, stderr = program.communicate(timeout=60)
    assert (program.returncode, stdout, stderr) == (130, b"", b"")
    assert not (home / "data").exists()
