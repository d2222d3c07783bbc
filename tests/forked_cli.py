"""The real command line, many times a second: `python -m tests.forked_cli` imports it once and forks for each run.

Requests and results are lines of JSON; `ForkedCli` speaks with it.
"""

from __future__ import annotations

import io
import json
import os
import pty
import selectors
import subprocess
import sys
import termios
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_BROKEN = 70
"""The code where this very module is at fault."""


@dataclass(frozen=True)
class Run:
    """One run: what it wrote, byte for byte, and how it ended (a signal is a negative number)."""

    arguments: tuple[str, ...]
    code: int
    out: bytes
    err: bytes


class ForkedCli:
    """The other side of the process."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_cli"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path,
        encoding: str = "utf-8",
        terminal: bool = False,
    ) -> Run:
        """Run `exlchat ARGUMENTS` in `folder`, its standard output and error a pipe each or a terminal each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        self._process.stdin.write(json.dumps({**asked, "encoding": encoding, "terminal": terminal}) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        return Run(tuple(arguments), said["code"], said["out"].encode("latin-1"), said["err"].encode("latin-1"))


def _serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        streams = [_terminal() if asked["terminal"] else os.pipe() for _ in range(2)]
        child = os.fork()
        if child == 0:
            _be_the_program(asked, [theirs for _, theirs in streams])
        for _, theirs in streams:
            os.close(theirs)
        out, err = _drain([ours for ours, _ in streams])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told = {"code": code, "out": out.decode("latin-1"), "err": err.decode("latin-1")}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _terminal() -> tuple[int, int]:
    """A terminal that hands on each byte as it was written."""
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs


def _drain(descriptors: Sequence[int]) -> list[bytes]:
    pieces: dict[int, list[bytes]] = {one: [] for one in descriptors}
    with selectors.DefaultSelector() as waiting:
        for one in descriptors:
            waiting.register(one, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                try:
                    piece = os.read(key.fd, 65536)
                except OSError:  # a terminal whose program has gone
                    piece = b""
                if piece:
                    pieces[key.fd].append(piece)
                else:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
    return [b"".join(pieces[one]) for one in descriptors]


def _be_the_program(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    try:
        _take(asked, streams)
        code = _program(asked["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        code = _BROKEN
    os._exit(code if isinstance(code, int) else 1)


def _take(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Standard streams, environment and folder of the program."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, one in enumerate((nothing, *streams)):
        os.dup2(one, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    encoding = asked["encoding"]
    sys.stdin = open(0, encoding=encoding)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _stream(1, encoding, "strict")
    sys.stderr = sys.__stderr__ = _stream(2, encoding, "backslashreplace")


def _stream(number: int, encoding: str, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(open(number, "wb"), encoding=encoding, errors=errors, line_buffering=os.isatty(number))


def _program(arguments: Sequence[str]) -> Any:
    from exlchat.cli import main as cli

    try:
        return cli.main(arguments)
    except SystemExit as end:
        return end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1


if __name__ == "__main__":
    # What the commands import when they run.
    import exlchat.cli.main
    import exlchat.cli.themes.command
    import exlchat.engine.engine
    import exlchat.ui.headless.ask  # noqa: F401

    _serve()
