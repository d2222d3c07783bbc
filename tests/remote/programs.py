"""`exlchat serve` with the bundled guide, as a program of its own, that is killed and begun again at its port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE


class ServeProgram:
    """Begun by `start`; what it says of requests is in `lines`."""

    def __init__(self, home: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.lines: list[str] = []
        self._home, self._port = home, port
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Comes back when it answers."""
        environment = {**os.environ, "EXLCHAT_HOME": str(self._home), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "exlchat", "serve", "guide", "--device", "cpu", "--port", str(self._port)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
        there = threading.Event()
        threading.Thread(target=self._read, args=(self._process, there), daemon=True).start()
        assert there.wait(4 * PATIENCE), self.lines

    def _read(self, process: subprocess.Popen[str], there: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if "answers at" in line:
                there.set()
        there.set()

    def kill(self) -> None:
        """As `kill -9` does; it is gone when this comes back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    @property
    def answered(self) -> int:
        """Requests for answers that it has noted."""
        return sum("completions" in line for line in self.lines)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def serve_programs(folder: Path, count: int = 1) -> Iterator[list[ServeProgram]]:
    """Running ones; none is left behind."""
    programs = [ServeProgram(folder / f"server-{number}", free_port()) for number in range(count)]
    try:
        for one in programs:
            one.start()
        yield programs
    finally:
        for one in programs:
            one.kill()
