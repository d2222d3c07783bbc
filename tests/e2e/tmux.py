"""A real terminal for tests: tmux on a server of its own, driven by keys and read as a screen."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import join
from types import TracebackType
from typing import Self

import pytest

from tests.patience import PATIENCE

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")

_ENDED = r"\[exit (\d+)\]"  # short, so that it fits into the narrowest terminal


class Tmux:
    """One program in one tmux window. A context manager; leaving it ends the server and the program.

    Args:
        command: the program and its arguments.
        environment: set for the program, beside the present environment.
        size: columns and rows.
        folder: where the program starts.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        size: tuple[int, int] = (100, 30),
        folder: Path | None = None,
    ) -> None:
        self._socket = f"exlchat-test-{uuid.uuid4().hex[:8]}"
        self._size = size
        settings = [f"{name}={value}" for name, value in environment.items()]
        # COLUMNS and LINES, which pytest sets, would win over the real size.
        program = join(["env", "-u", "COLUMNS", "-u", "LINES", *settings, *command])
        # The shell stays after the program, so that its last screen and its exit code can still be read.
        self._script = f'{program}; echo "[exit $?]"; exec sleep 600'
        self._folder = folder

    def __enter__(self) -> Self:
        columns, rows = self._size
        place = ["-c", str(self._folder)] if self._folder else []
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), *place, self._script)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server", check=False)

    def keys(self, *names: str) -> None:
        """Presses keys by tmux's names: `Enter`, `Escape`, `C-q`, `F1` ..."""
        self._tmux("send-keys", *names)

    def type(self, text: str) -> None:
        """Types `text` as it stands."""
        self._tmux("send-keys", "-l", text)

    def send(self, data: bytes) -> None:
        """Sends bytes as they stand, such as what a mouse reports."""
        self._tmux("send-keys", "-H", *(f"{byte:02x}" for byte in data))

    def keep_clipboard(self) -> None:
        """From here on what the program copies (OSC 52) is kept for `clipboard`."""
        self._tmux("set-option", "-s", "set-clipboard", "on")

    def clipboard(self) -> str:
        """What the program has copied last."""
        return self._tmux("show-buffer").stdout

    def paste(self, data: bytes) -> None:
        """Pastes `data` as a terminal does, in brackets if the program has asked for them."""
        self._tmux("load-buffer", "-", data=data)
        self._tmux("paste-buffer", "-p", "-r")

    def screen(self) -> str:
        """The text now on the screen."""
        return self._tmux("capture-pane", "-p").stdout

    def coloured(self) -> str:
        """The text now on the screen with the sequences that colour it."""
        return self._tmux("capture-pane", "-p", "-e").stdout

    def wait_for(self, pattern: str, timeout: float = PATIENCE) -> str:
        """The screen as soon as the regular expression `pattern` matches it.

        Raises:
            AssertionError: it never did; the last screen is shown.
        """
        return self._wait(lambda screen: re.search(pattern, screen) is not None, f"{pattern!r} to appear", timeout)

    def wait_until_gone(self, pattern: str, timeout: float = PATIENCE) -> str:
        """The screen as soon as `pattern` no longer matches it."""
        return self._wait(lambda screen: re.search(pattern, screen) is None, f"{pattern!r} to go away", timeout)

    def wait_for_end(self, timeout: float = PATIENCE) -> int:
        """The program's exit code, once it has ended."""
        found = re.search(_ENDED, self.wait_for(_ENDED, timeout))
        assert found is not None
        return int(found[1])

    def close_window(self) -> None:
        """What runs in it hears that its terminal has gone."""
        self._tmux("kill-session")

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the window while the program runs."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def _wait(self, done: Callable[[str], bool], what: str, timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while True:
            screen = self.screen()
            if done(screen):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:g} s for {what}; the screen is:\n{screen}")
            time.sleep(0.05)

    def _tmux(self, *arguments: str, check: bool = True, data: bytes = b"") -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-L", self._socket, *arguments]
        done = subprocess.run(command, capture_output=True, input=data, check=check, timeout=PATIENCE)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
