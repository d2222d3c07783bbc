"""The command line, tried on many folders: each time in a process of its own, with bounds on time and memory.

The processes are forked from one that has imported all they need, so that a trial takes a tenth of a second where a
program of its own would take two.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SECONDS = 20.0
MEMORY = 2 * 2**30
"""Bytes of addresses beyond those of the imported program."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one ended.

    Args:
        code: its exit code; `None` if a signal ended it.
        signal: which; SIGKILL where it was not done in time.
        seconds: what it took.
        peak: bytes that it held at most.
        out, err: what it said.
    """

    code: int | None
    signal: int | None
    seconds: float
    peak: int
    out: str
    err: str

    @property
    def fault(self) -> str | None:
        """What no file of a stranger may bring about; `None` if nothing did."""
        if self.signal is not None:
            return f"ended by {signal.Signals(self.signal).name} after {self.seconds:.1f} s"
        if "Traceback" in self.err or "panicked" in self.err:
            return f"a traceback: {self.err[-300:]}"
        if self.seconds > SECONDS or self.peak > MEMORY:
            return f"took {self.seconds:.1f} s and {self.peak / 2**20:.0f} MiB"
        return None


class Trials:
    """A process that is asked for trials, one at a time."""

    def __init__(self, home: Path, *warm: str, **variables: str) -> None:
        """`home` is the program's own folder, `warm` a command that needs all imports and goes well."""
        known = {"EXLCHAT_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HOME": str(home / "hf")}
        environment = {**os.environ, **known, **variables}
        command = [sys.executable, "-m", "tests.untrusted.trials"]
        self.home = home
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.warm = self.run(*warm)

    def run(self, *arguments: str, memory: int = MEMORY) -> Trial:
        """`exlchat ARGUMENTS`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([memory, *arguments]) + "\n")
        self._process.stdin.flush()
        return Trial(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=SECONDS)


@contextlib.contextmanager
def trials(home: Path, *warm: str, **variables: str) -> Iterator[Trials]:
    """`Trials`, closed at the end."""
    made = Trials(home, *warm, **variables)
    try:
        yield made
    finally:
        made.close()


def serve() -> None:
    """Answers requests on standard input until it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    warmed = False
    for line in sys.stdin:
        memory, *arguments = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            trial = _tried(Path(folder), arguments, memory)
            if not warmed:
                for name in json.loads((Path(folder) / "modules").read_text()):
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
                warmed = True
        sys.stdout.write(json.dumps(asdict(trial)) + "\n")
        sys.stdout.flush()


def _tried(folder: Path, arguments: Sequence[str], memory: int) -> Trial:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _run(folder, arguments, memory)
    while signal.sigtimedwait([signal.SIGCHLD], max(0.0, SECONDS + began - time.monotonic())) is not None:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
    else:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - began
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    said = [(folder / name).read_text(errors="replace") for name in ("out", "err")]
    ended = (code, None) if code >= 0 else (None, -code)
    return Trial(*ended, seconds, usage.ru_maxrss * 1024, said[0], said[1])


def _run(folder: Path, arguments: Sequence[str], memory: int) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o600), descriptor)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        from exlchat.cli import main as cli

        code = cli.main(arguments)
        (folder / "modules").write_text(json.dumps(sorted(sys.modules)))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
