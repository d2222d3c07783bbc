"""Everything that is printed goes one way, and nothing on it steers a terminal, forges a line or raises."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import exlchat
from exlchat.cli.ask import build_parser as ask_parser
from exlchat.llm.info import LoadProgress
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_file, print_json, print_lines, print_text

SOURCE = Path(exlchat.__file__).parent
ELSEWHERE = {
    # asks whether the streams are terminals, and whether the app can draw on them
    "cli/main.py": {"sys.stdout"},
    "cli/chat.py": {"sys.stdout", "sys.stderr"},
    # tells of the terminal itself: whether it is one, and its encoding
    "cli/doctor/facts.py": {"sys.stdout"},
    # hands standard output to the line mode, whose formatter makes every line safe
    "ui/line/run.py": {"sys.stdout"},
    # asks for the number of what the app draws on, to be restored
    "ui/tui/app.py": {"sys.stderr"},
    # restores the terminal at the end of a signal, with codes of our own
    "ui/terminal/terminal_state.py": {"os.write"},
    # wakes the loop of events
    "ui/terminal/interrupts.py": {"os.write"},
    # keep to themselves what libraries warn of
    "engine/diagnostics.py": {"warnings.catch_warnings", "warnings.simplefilter"},
    "engine/grammar/schema_lengths.py": {"warnings.catch_warnings", "warnings.simplefilter"},
    # writes into the pipe of its child
    "untrusted/child.py": {"os.write"},
}
"""Files that print nothing and yet name what prints, each with the reason."""
PRINTING = {
    *("print", "pprint", "input", "Console", "StreamHandler", "basicConfig"),
    *("print_exc", "print_exception", "print_help", "print_usage"),
}
NASTY = "a\x1b[2Jb\x9b31m\u202ec\x07\udcff"
SHOWN = "a\u241b[2Jb\ufffd31m\ufffdc\u2407\ufffd"


def what_prints(node: ast.AST) -> str | None:
    """What in the source prints, or could."""
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"):
            return f"sys.{node.attr}"
        case ast.ImportFrom(module="sys" | "warnings"):
            return f"from {node.module}"
        case ast.Attribute(value=ast.Name(id="warnings")):
            return f"warnings.{node.attr}"
        case ast.Attribute(value=ast.Name(id="os"), attr="write" | "writev"):
            return f"os.{node.attr}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in PRINTING:
            return name
        case _:
            return None


def test_everything_is_printed_by_the_one_module() -> None:
    found: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if name := what_prints(node):
                found.setdefault(file.relative_to(SOURCE).as_posix(), set()).add(name)
    assert {"sys.stdout", "sys.stderr", "Console"} <= found.pop("ui/terminal/standard_streams.py")
    assert found == ELSEWHERE, "print it with exlchat.ui.terminal.standard_streams"


@pytest.mark.parametrize(
    "source",
    ["print('x')", "sys.stdout.write('x')", "os.write(2, b'x')", "rich.console.Console()", "warnings.warn('x')"],
)
def test_the_walk_sees_what_prints(source: str) -> None:
    assert [name for node in ast.walk(ast.parse(source)) if (name := what_prints(node))]


def test_a_row_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_lines(["a\nb", "a\r\nb", "a\rb", "a\u2028b", f" {NASTY}\t|"]) is ExitCode.OK
    assert capsys.readouterr().out == "a\u240ab\n" * 4 + f" {SHOWN}\t|\n"


def test_text_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(f"a\r\nb\rc\n\t{NASTY}")
    assert capsys.readouterr().out == f"a\nb\nc\n\t{SHOWN}"


@pytest.mark.parametrize("separator", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_an_error_is_one_line(separator: str, capsys: pytest.CaptureFixture[str]) -> None:
    ErrorLines().say(f"no model {NASTY}{separator}exlchat: all is well")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"exlchat: no model {SHOWN}")


def test_a_mistake_in_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        ask_parser().parse_args([f"--{NASTY}\nexlchat:" + "x" * 100_000])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"exlchat ask: unrecognized arguments: --{SHOWN} exlchat:xxx")
    assert line.endswith("(exlchat ask --help lists the options)")
    assert len(line) < 1200


def test_json_is_json_and_exact(capsys: pytest.CaptureFixture[str]) -> None:
    value = {NASTY: [f"{NASTY}\r\n\u2028\U000e0041", "ü日本", 0.1, None, True]}
    print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert shown.replace("\n", "").isprintable()
    assert "ü日本" in shown
    print_json({"a": float("nan"), "b": [float("-inf")]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": None, "b": [None]}


class Encoded(io.TextIOWrapper):
    """A standard stream of that encoding, strict as Python's own."""

    def __init__(self, encoding: str, *, terminal: bool = False) -> None:
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding=encoding, errors="strict")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        return self.raw_bytes.getvalue().decode(self.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16", "utf-8"])
def test_what_an_encoding_cannot_show_is_replaced(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Encoded(encoding), Encoded(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    said = f"ü日本 … {NASTY}"
    text = f"ü日本 … {SHOWN}"
    expected = text.encode(encoding, "replace").decode(encoding)
    print_text(f"{said}\n")
    print_lines([said])
    ErrorLines().say(said)
    assert (out.text(), err.text()) == (f"{expected}\n" * 2, f"exlchat: {expected}\n")
    out.raw_bytes.truncate(out.raw_bytes.seek(0))
    print_json([said])
    assert json.loads(out.text()) == [said]


@pytest.mark.parametrize("encoding", ["ascii", "utf-16"])
def test_a_file_is_exact_in_a_pipe_and_safe_on_a_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ü\x1b[2J\r\n"
    monkeypatch.setattr(sys, "stdout", pipe := Encoded(encoding))
    assert print_file(text) is ExitCode.OK
    assert pipe.raw_bytes.getvalue() == text.encode()
    monkeypatch.setattr(sys, "stdout", terminal := Encoded("latin-1", terminal=True))
    assert print_file(text) is ExitCode.OK
    assert terminal.text() == "ü?[2J\n"


def test_progress_moves_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (terminal := Encoded("utf-8", terminal=True), pipe := Encoded("utf-8")):
        monkeypatch.setattr(sys, "stderr", stream)
        lines = ErrorLines()
        lines.loading(LoadProgress(1, 4, "reading\nweights \x1b[2J"))
        lines.say("a notice")
    assert pipe.text() == "exlchat: a notice\n"
    assert terminal.text() == "\r\x1b[2Kreading weights \u241b[2J: 25 %\r\x1b[2Kexlchat: a notice\n"


def test_what_python_prints_by_itself_goes_this_way() -> None:
    # In a program of its own: threads that other tests have left may keep warnings to themselves meanwhile.
    code = (
        "import json, sys, warnings\n"
        "from exlchat.ui.terminal import standard_streams\n"
        "text = json.loads(sys.argv[1])\n"
        "standard_streams.take_over()\n"
        "warnings.warn(f'{text}\\nexlchat: all is well', stacklevel=1)\n"
        "raise ValueError(text)\n"
    )
    command = [sys.executable, "-X", "utf8", "-c", code, json.dumps(NASTY)]
    said = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stderr.splitlines()
    assert said[0] == f"exlchat: UserWarning: {SHOWN} exlchat: all is well"
    assert said[1] == "Traceback (most recent call last):"
    assert said[-1] == f"ValueError: {SHOWN}"


def test_closed_streams_are_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert print_lines(["a"]) is ExitCode.ERROR
    assert capsys.readouterr().err == "exlchat: standard output is closed; there is nowhere to write to\n"
    monkeypatch.setattr(sys, "stderr", None)
    assert print_lines(["a"]) is ExitCode.ERROR
