"""A program on a pseudo-terminal: what it sends, the modes that it leaves set, and how lines are edited there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tests.patience import PATIENCE

_MODE = re.compile(rb"\x1b\[\?(\d+)([hl])")
_KEYS = re.compile(rb"\x1b\[([<>])\d*u")
USUAL = {7: True, 25: True}
"""Modes that are set on a terminal that nobody uses: lines wrap, the cursor is seen."""


class Terminal:
    """A context manager; leaving it kills what still runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        for name in ("COLUMNS", "LINES"):
            self._environment.pop(name, None)
        self.sent = b""
        self.code: int | None = None
        """As `waitpid` gives it: the exit code, negative for the signal that killed it."""

    def __enter__(self) -> Self:
        self.pid, self._master = pty.fork()
        if not self.pid:
            try:
                os.execvpe(self._command[0], self._command, self._environment)
            finally:
                os._exit(127)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.attributes_before = self.attributes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.hang_up()

    def attributes(self) -> list[Any]:
        """How lines are edited and echoed."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """The terminal goes, as when its window is closed; the system sends SIGHUP."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def wait_for(self, what: str | Callable[[], bool]) -> None:
        """Until it has sent this, or something is so."""
        wanted = what.encode() if isinstance(what, str) else None
        end = time.monotonic() + PATIENCE
        while not (wanted in self.sent if wanted is not None else what()):  # type: ignore[operator]
            assert time.monotonic() < end, f"no {what!r} in {self.sent[-2000:]!r}"
            assert self._poll() is None, f"ended with {self.code} before {what!r}: {self.sent[-2000:]!r}"

    def wait_for_end(self, seconds: float = PATIENCE) -> float:
        """Until it has ended, which took so many seconds; `code` is known then."""
        began = time.monotonic()
        while self._poll() is None:
            assert time.monotonic() < began + seconds, f"still runs: {self.sent[-2000:]!r}"
        took = time.monotonic() - began
        while self._master >= 0 and self._read(0.05):
            pass
        return took

    def modes(self) -> dict[int, bool]:
        """Private modes that are not as on a terminal that nobody uses."""
        now = dict(USUAL)
        for number, end in _MODE.findall(self.sent):
            now[int(number)] = end == b"h"
        return {number: on for number, on in now.items() if on != USUAL.get(number, False)}

    def key_protocols(self) -> int:
        """How many of kitty's keyboard modes are left on its stack."""
        return sum(1 if kind == b">" else -1 for kind in _KEYS.findall(self.sent))

    def _poll(self) -> int | None:
        if self._master >= 0:
            self._read(0.02)
        else:
            time.sleep(0.02)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.sent += data
        return bool(data)
