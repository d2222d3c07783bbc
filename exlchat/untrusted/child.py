"""Work on what strangers made that no bound holds inside one process: templates, tokenizers.

One call of a C function can take all memory or a minute, and a library may abort. So that work is done by a child
process of its own, which is kept for the next request and can be lost: `worker` has its bounds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from exlchat.untrusted.worker import LENGTH, OUT_OF_MEMORY

WALL_SECONDS = 60.0
"""Of waiting for an answer, on a machine that may be busy; processor time is bounded by the child itself."""

_PIECE = 2**20
_START = "import sys; sys.path[:] = sys.argv[4:]; from exlchat.untrusted.worker import serve; " + (
    "serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))"
)


class ChildError(Exception):
    """Why there is no answer, as a clause whose subject is the work: "ran longer than 2 s"."""


class Child:
    """A process for requests of one kind, one at a time. It is started when needed, or ahead of that by `start`.

    Args:
        module: the module whose `handle` answers; the child imports it, the parent need not.
        seconds: of processor time for one request.
        memory: bytes that one request may take.
        largest: bytes of a request, and of an answer.
    """

    def __init__(self, module: str, *, seconds: float, memory: int, largest: int) -> None:
        self._module, self._seconds, self._memory, self._largest = module, seconds, memory, largest
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Has the child get ready, without waiting for it. One that cannot be started is told by `ask`."""
        with self._lock, contextlib.suppress(ChildError):
            self._running()

    def ask(self, request: object) -> Any:
        """The answer to `request`; both are values of JSON.

        Raises:
            ChildError: there is none: too much time, memory or text, or the child has crashed.
        """
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(data) > self._largest:
            raise ChildError(f"is more than {self._largest // 10**6} MB")
        with self._lock:
            process = self._running()
            try:
                answer = self._exchange(process, LENGTH.pack(len(data)) + data)
            except BaseException:
                # Whatever it is, half an answer must not be taken for the next one.
                self._end()
                raise
        return json.loads(answer.decode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Ends the child, in the middle of a request, too. A later `ask` starts another."""
        process = self._process
        if process is not None and self._owner == os.getpid():
            process.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self._end()
        package = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-I", "-S", "-c", _START, self._module, str(self._memory), str(self._seconds)]
        try:
            # A session of its own, so that ctrl+c and a closed terminal are the parent's alone to answer.
            self._process = subprocess.Popen(
                [*command, package, *filter(None, sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ChildError(f"cannot be done in a process of its own ({error.strerror})") from None
        self._owner = os.getpid()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        atexit.register(self.close)
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + WALL_SECONDS
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdin, selectors.EVENT_WRITE)
            left = memoryview(request)
            while left:
                self._wait(ready, deadline)
                try:
                    left = left[os.write(process.stdin.fileno(), left[:_PIECE]) :]
                except BrokenPipeError:
                    raise self._died(process) from None
            ready.unregister(process.stdin)
            ready.register(process.stdout, selectors.EVENT_READ)
            received, whole = bytearray(), LENGTH.size
            while len(received) < whole:
                self._wait(ready, deadline)
                piece = os.read(process.stdout.fileno(), _PIECE)
                if not piece:
                    raise self._died(process)
                received += piece
                if len(received) >= LENGTH.size:
                    whole = LENGTH.size + LENGTH.unpack_from(received)[0]
                if whole > self._largest:
                    raise ChildError(f"makes more than {self._largest // 10**6} MB")
        return bytes(received[LENGTH.size :])

    def _wait(self, ready: selectors.BaseSelector, deadline: float) -> None:
        if not ready.select(max(0.0, deadline - time.monotonic())):
            raise ChildError(f"has not ended after {WALL_SECONDS:g} s")

    def _died(self, process: subprocess.Popen[bytes]) -> ChildError:
        code = process.wait()
        if code == -signal.SIGPROF:
            return ChildError(f"ran longer than {self._seconds:g} s")
        if code == OUT_OF_MEMORY:
            return ChildError(f"needs more than {self._memory // 10**6} MB")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ChildError(f"crashed ({name})")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
