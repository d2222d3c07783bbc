"""The front door: what a command line means, and how a wrong one is answered."""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from exlchat import __version__, paths
from exlchat.cli import chat
from exlchat.cli import main as cli
from exlchat.cli.ask import build_parser as ask_parser
from exlchat.cli.ask import model_and_prompt
from exlchat.cli.bench.command import build_parser as bench_parser
from exlchat.cli.chat import build_parser as chat_parser
from exlchat.cli.doctor.command import build_parser as doctor_parser
from exlchat.cli.first_message import model_and_message
from exlchat.cli.models import build_parser as models_parser
from exlchat.cli.personas import build_parser as personas_parser
from exlchat.cli.presets import build_parser as presets_parser
from exlchat.cli.pull import build_parser as pull_parser
from exlchat.cli.remotes import build_parser as remotes_parser
from exlchat.cli.sessions.command import build_parser as sessions_parser
from tests.patience import PATIENCE

PARSERS = [
    chat_parser,
    ask_parser,
    bench_parser,
    doctor_parser,
    models_parser,
    personas_parser,
    presets_parser,
    pull_parser,
    remotes_parser,
    sessions_parser,
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exlchat", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL, **options
    )


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ask", "--help"], ["doctor", "--help"]])
def test_version_and_help_import_only_what_declares_options(arguments: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "exlchat", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = set(re.findall(r"\|\s+(\S+)$", result.stderr, re.MULTILINE))
    assert "exlchat.cli.parser" in imported
    assert not imported & {"torch", "textual", "prompt_toolkit", "tokenizers", "numpy"}
    assert not imported & {"dataclasses", "sqlite3", "tomllib", "platformdirs", "subprocess", "difflib"}
    assert not {name for name in imported if name.startswith(("exlchat.app", "exlchat.config", "exlchat.engine"))}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"exlchat {__version__}\n"


@pytest.mark.parametrize("parser", PARSERS)
def test_help_fits_eighty_columns(parser: Callable[[], argparse.ArgumentParser]) -> None:
    lines = parser().format_help().splitlines()
    assert max(map(len, lines)) <= 80


def test_help_names_commands_folders_and_exit_codes() -> None:
    text = chat_parser().format_help()
    for part in ("exlchat ask", "exlchat doctor", "EXLCHAT_HOME", "settings.toml", "130 stopped by ctrl+c"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--colour"], "unrecognized arguments: --colour"),
        (["--top-k", "many"], "--top-k: 'many' is not a whole number, 0 or more"),
        (["--context", "0"], "--context: '0' is not a whole number, 1 or more"),
        (["--seed", "-1"], "--seed"),
        (["--temperature", "warm"], "'warm' is not a number"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--cache-gb", "1e308"], "--cache-gb: '1e308' is not a number above 0, at most 100,000"),
        (["--cache-gb", "nan"], "--cache-gb: 'nan' is not a number above 0"),
        (["ask", "--disk-gb", "1e308"], "--disk-gb: '1e308' is not a number, 0 or above, at most 100,000"),
        (["--cache-tokens", "200000000000"], "--cache-tokens: '200000000000' is not a whole number, 256 to 1000000000"),
        (["ask", "--kv-cache", "q3"], "invalid choice: 'q3'"),
        (["ask", "guide", "two", "words"], "put the prompt in quotes"),
        (["ask", "-m", "guide", "two", "words"], "put the prompt in quotes"),
        (["ask", "--stop", ""], "the text is empty"),
        (["ask", "--begin", "\udcff"], "the text is not UTF-8"),
        (["doctor", "now"], "unrecognized arguments: now"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line
    assert "--help" in line


@pytest.mark.parametrize("command", [[], ["ask", "-m"]])
def test_a_wrong_model_is_one_line_and_exit_code_1(command: list[str]) -> None:
    result = run(*command, "/no/such/model")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "exlchat: /no/such/model: no such folder (there is no /no/such either); "
        "give the folder that holds config.json and *.safetensors, or: exlchat guide"
    ]


@pytest.mark.parametrize("arguments", ["ask hello", "bench", "doctor"])
def test_a_closed_stdout_is_one_line_and_exit_code_1(arguments: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m exlchat {arguments} >&-"
    result = subprocess.run(
        command, check=False, shell=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (
        1,
        "exlchat: standard output is closed; there is nowhere to write to\n",
    )


def test_a_mistyped_command_is_recognised() -> None:
    assert "did you mean: exlchat doctor" in run("docter").stderr


def test_the_app_needs_a_terminal_and_points_to_ask(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    result = run(str(tmp_path / "model"))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "exlchat ask" in result.stderr


@pytest.mark.parametrize("option", ["--line", "--plain"])
def test_the_line_mode_needs_a_terminal_too(option: str) -> None:
    result = run(option, "guide")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "exlchat ask" in result.stderr


def in_a_terminal(*arguments: str, stderr: str = "") -> tuple[int, str]:
    """Exit code and output of the program with a terminal of its own; `stderr` is a shell redirection."""
    master, slave = pty.openpty()
    command = f'"$0" -m exlchat "$@" {stderr}'
    program = subprocess.Popen(
        ["sh", "-c", command, sys.executable, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        close_fds=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    output = b""
    with os.fdopen(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        # Linux says "input/output error" when the last program on the other side has gone.
        while piece := terminal.read(4096):
            output += piece
    return program.wait(timeout=60), output.decode()


@pytest.mark.parametrize("redirection", ["2>{file}", "2>&-"])
def test_the_app_does_not_draw_into_a_file(redirection: str, tmp_path: Path) -> None:
    code, output = in_a_terminal("guide", stderr=redirection.format(file=tmp_path / "errors"))
    assert code == 2
    assert output.splitlines() == ["exlchat: the chat app draws on standard error; start it without redirecting that"]


def test_a_broken_installation_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "_is_terminal", lambda _: True)
    monkeypatch.setattr(paths, "shipped_themes", lambda: tmp_path)
    assert cli.main(["guide"]) == 1
    assert capsys.readouterr().err == (f"exlchat: {tmp_path}: exlchat-dark.toml is missing; install exlchat again\n")


def test_a_folder_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    inside = tmp_path / "downloaded" / "\x1b[2Jmodel\u202e"
    inside.mkdir(parents=True)
    (inside / "config.json").write_text("{}")
    result = run(str(tmp_path / "downloaded"))
    assert result.returncode == 1
    assert "\x1b" not in result.stderr
    assert "\u202e" not in result.stderr
    assert "one folder further down" in result.stderr


def test_broken_settings_are_one_line_naming_the_key(home: Path, tmp_path: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text("themee = 'x'\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    result = run("ask", "-m", str(tmp_path / "model"), "hello")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "settings.toml: unknown key 'themee'; did you mean theme?" in result.stderr


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        (None, [], (None, None)),
        (None, ["Why?"], (None, "Why?")),
        (None, ["guide"], ("guide", None)),
        (None, ["."], (".", None)),
        (None, [""], (None, "")),
        (None, ["guide", "Why?"], ("guide", "Why?")),
        (None, ["x" * 100_000], (None, "x" * 100_000)),
        (None, ["~nobody-of-this-name"], (None, "~nobody-of-this-name")),
        ("m", ["."], ("m", ".")),
    ],
)
def test_free_arguments_of_ask(model: str | None, words: list[str], expected: tuple[str | None, str | None]) -> None:
    assert model_and_prompt(ask_parser(), model, words) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["guide", "--max-tokens", "3", "What is EXL2?"],
        ["--max-tokens", "3", "guide", "What is EXL2?"],
        ["guide", "What is EXL2?", "--max-tokens", "3"],
        ["-m", "guide", "--max-tokens", "3", "--", "--odd"],
    ],
)
def test_options_may_stand_between_model_and_prompt(arguments: list[str]) -> None:
    result = run("ask", "--no-save", "--device", "cpu", "--temperature", "0", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        (None, [], (None, None)),
        (None, ["What is EXL2?"], (None, "What is EXL2?")),
        (None, ["guide"], ("guide", None)),
        (None, ["hello"], ("hello", None)),
        (None, ["a model"], ("a model", None)),
        (None, [""], ("", None)),
        (None, ["guide", "Why?"], ("guide", "Why?")),
        ("guide", ["a model"], ("guide", "a model")),
        (None, ["why " * 30_000], (None, "why " * 30_000)),
    ],
)
def test_free_arguments_of_the_chat(
    model: str | None,
    words: list[str],
    expected: tuple[str | None, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a model").mkdir()
    assert model_and_message(chat_parser(), model, words) == expected


def test_a_message_that_could_be_one_of_several_models_is_asked_about_in_one_line(home: Path, tmp_path: Path) -> None:
    for name in ("one my model", "two my model"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text(f"model_folders = ['{tmp_path / 'models'}']\n")
    result = run("my model")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "my model could be one my model, two my model" in result.stderr
    assert "if it is a message: exlchat -m guide MESSAGE" in result.stderr


def test_commands_of_other_programs_work_or_say_what_does_it_here() -> None:
    assert run("list", "--json").stdout == run("models", "--json").stdout
    assert run("chat", "--help").stdout == run("--help").stdout
    assert "as `ollama run` has it" in run("run", "--help").stdout
    for command, said in (
        ("rm", "exlchat models says where it lies"),
        ("ls", "exlchat models lists"),
        ("logs", "exlchat sessions list"),
        ("keys", "none are needed"),
    ):
        result = run(command)
        assert result.returncode != 0
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


LEFT_BEHIND = """
import sys, threading
import torch
from exlchat.cli.main import program

computing = threading.Event()

def load():
    weights = torch.ones(1_000_000)
    while True:
        weights = weights + 1
        computing.set()

threading.Thread(target=load, daemon=True).start()
computing.wait()
sys.exit(program())
"""


@pytest.mark.parametrize(("arguments", "code"), [(["themes", "list"], 0), (["ask", "-m", "no/such/folder", "a?"], 1)])
def test_a_thread_in_c_does_not_break_the_end(arguments: list[str], code: int, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND, *arguments],
        env={"EXLCHAT_HOME": str(home), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "terminate" not in done.stderr
    assert done.stdout if code == 0 else done.stderr
