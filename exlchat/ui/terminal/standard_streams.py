"""The one way to standard output and standard error: what a stranger wrote neither steers the terminal nor stops us.

No control character goes out but the tab and the line break that ends a line. A row stays one row. What the encoding
of a stream cannot show becomes a question mark. `tests/ui/test_standard_streams.py` walks the source and fails where
something is printed otherwise.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final, TextIO

from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.untrusted.sanitize import normalize_newlines
from exlchat.untrusted.text import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.segment import Segment

    from exlchat.llm.events import PrefillProgress
    from exlchat.llm.info import LoadProgress

CLOSED: Final = "standard output is closed; there is nowhere to write to"
_CLEAR_LINE: Final = "\r\x1b[2K"
_LONGEST_LINE: Final = 2000


class OutputClosedError(Exception):
    """The reader of standard output has gone, as `head` does when it has enough."""


class OutputError(Exception):
    """Standard output cannot be written: one line with the reason."""


def print_lines(lines: Iterable[str]) -> ExitCode:
    """Writes a command's result, a line each, whatever line breaks are in it.

    That standard output cannot be written is a line on standard error and an exit code, here and below.
    """
    return _print("".join(f"{_in_a_row(line)}\n" for line in lines))


def print_text(text: str) -> ExitCode:
    return _print(visible(normalize_newlines(text)))


def print_json(value: Any) -> ExitCode:
    return _print(json_text(value, indent=1) + "\n")


def print_file(text: str) -> ExitCode:
    """Writes what would else be a file of its own. A terminal gets it as `print_text` writes it.

    A file or a pipe gets it byte for byte, in UTF-8: data, and the one text that is not made safe.
    """
    return print_text(text) if on_terminal() else _print(text.encode("utf-8"))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` exactly, in JSON that can be shown.

    What `visible` would change is escaped, and where standard output is not UTF-8, all that is not ASCII. What JSON has
    no number for is `null`.
    """
    in_utf8 = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name == "utf-8"
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=not in_utf8, default=str, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
        return json_text(finite, indent=indent)
    if visible(text) == text:
        return text
    return "".join(one if visible(one) == one else json.dumps(one)[1:-1] for one in text)


def colour_console() -> Console | None:
    """Standard output, where it is a terminal that shows colours, and they are wanted there (NO_COLOR)."""
    if not on_terminal():
        return None
    from rich.console import Console

    console = Console(file=sys.stdout)
    return console if console.color_system is not None and not console.no_color else None


def print_segments(console: Console, lines: Iterable[Sequence[Segment]]) -> ExitCode:
    """Writes a result in colours: the styles are ours, the text between them is as safe as that of `print_lines`."""
    from rich.segment import Segment, Segments

    with console.capture() as drawn:
        for line in lines:
            parts = [Segment(_in_a_row(part.text), part.style) for part in line]
            console.print(Segments([*parts, Segment("\n")]), end="", soft_wrap=True)
    return _print(drawn.get())


def write_text(text: str) -> None:
    r"""Writes more of a text in which every line ends in "\n". Raises `OutputClosedError` or `OutputError`."""
    _write(visible(text))


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def complain(line: str, program: str = "exlchat") -> None:
    """A line on standard error."""
    ErrorLines(program).say(line)


class ErrorLines:
    """Standard error: a moving progress line where it is a terminal, and lines that stay.

    One that is closed or full swallows them: the answer on standard output matters more.
    """

    def __init__(self, program: str = "exlchat") -> None:
        self._program = program
        self._stream: TextIO = io.StringIO() if sys.stderr is None else sys.stderr
        self.live = self._stream.isatty()
        """Whether there is a moving line."""
        self._shown = False

    def loading(self, progress: LoadProgress) -> None:
        percent = 100 * progress.done // max(progress.total, 1)
        self.show(f"{progress.what}: {percent} %")

    def reading(self, progress: PrefillProgress) -> None:
        self.show(f"reading the prompt: {progress.done} of {progress.total} tokens")

    def thinking(self, words: int) -> None:
        self.show(f"thinking: {words} words so far")

    def say(self, line: str) -> None:
        """A line that stays, and is one line whatever is quoted in it."""
        self.clear()
        self._write(f"{self._program}: {one_line(visible(line), _LONGEST_LINE)}\n")

    def show(self, text: str) -> None:
        """The moving line; nothing where there is no terminal."""
        if self.live:
            self._shown = True
            # A line that wraps could not be cleared again.
            from shutil import get_terminal_size

            most = min(_LONGEST_LINE, get_terminal_size().columns - 1)
            self._write(f"{_CLEAR_LINE}{one_line(visible(text), most)}")

    def clear(self) -> None:
        if self._shown:
            self._shown = False
            self._write(_CLEAR_LINE)

    def crash(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Nothing that goes well needs it.
        import traceback

        self.clear()
        rows = "".join(traceback.format_exception(kind, error, trace)).splitlines()
        self._write("".join(f"{_in_a_row(row)}\n" for row in rows))

    def _write(self, text: str) -> None:
        try:
            _put(self._stream, text)
        except OSError:
            _abandon(self._stream)


def take_over() -> None:
    """Has the warnings and tracebacks that Python prints by itself go this way too: they quote strangers."""
    warnings.showwarning = lambda message, category, *_, **__: complain(f"{category.__name__}: {message}")
    sys.excepthook = lambda kind, error, trace: ErrorLines().crash(kind, error, trace)


def let_go() -> None:
    """A terminal that has gone takes nothing more, and Python would say so at its end with an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                _abandon(stream)


def _in_a_row(text: str) -> str:
    """A line break shows as its picture, so that white space stays as wide as it was."""
    return visible(normalize_newlines(text)).replace("\n", "\N{SYMBOL FOR LINE FEED}")


def _print(text: str | bytes) -> ExitCode:
    try:
        _write(text)
    except OutputClosedError:
        return ExitCode.BROKEN_PIPE
    except OutputError as error:
        complain(str(error))
        return ExitCode.ERROR
    return ExitCode.OK


def _write(text: str | bytes) -> None:
    if sys.stdout is None:
        raise OutputError(CLOSED)
    try:
        if isinstance(text, bytes):
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
        else:
            _put(sys.stdout, text)
    except BrokenPipeError as error:
        _abandon(sys.stdout)
        raise OutputClosedError from error
    except OSError as error:
        _abandon(sys.stdout)
        reason = (error.strerror or type(error).__name__).lower()
        raise OutputError(f"standard output cannot be written ({reason})") from error


def _put(stream: TextIO, text: str) -> None:
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "replace":
        # In the locale C, Python's own choice would let bytes through that are no text.
        stream.reconfigure(errors="replace")
    stream.write(text)
    stream.flush()


def _abandon(stream: TextIO) -> None:
    """Lets Python's own flush at exit go nowhere, after `stream` has refused to be written."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
