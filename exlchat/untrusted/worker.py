"""The other end of `child`: a process that does one kind of work on what strangers made, within bounds.

It imports little, because a model's first prompt may wait for it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import struct
from typing import BinaryIO

LENGTH = struct.Struct("!Q")
"""Bytes that follow, in front of every request and answer."""

OUT_OF_MEMORY = 77
"""Exit code."""

_MOST_FILES = 32


def serve(module: str, memory: int, seconds: float) -> None:
    """Answers requests until standard input ends, as it does when the parent dies, however it dies.

    Args:
        module: whose `handle(request) -> answer` does the work; both are values of JSON.
        memory: bytes of address space beyond what the process has when it is ready.
        seconds: of processor time for each request; one that takes more ends the process by SIGPROF.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a library prints is nobody's answer.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    handle = importlib.import_module(module).handle
    _confine(memory)
    while (request := _read(requests)) is not None:
        # The default action of its signal ends the process even in the middle of a library's loop.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = json.dumps(handle(json.loads(request)), ensure_ascii=False).encode("utf-8", "surrogatepass")
            signal.setitimer(signal.ITIMER_PROF, 0)
            answers.write(LENGTH.pack(len(answer)) + answer)
            answers.flush()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _read(stream: BinaryIO) -> str | None:
    header = stream.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    return stream.read(LENGTH.unpack(header)[0]).decode("utf-8", "surrogatepass")


def _confine(memory: int) -> None:
    """Bounds that hold inside C code, too, and no way to write files, start programs or leave a core dump."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    bounds = {
        resource.RLIMIT_AS: used + memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MOST_FILES,
        resource.RLIMIT_NPROC: 0,
    }
    for what, bound in bounds.items():
        # A bound that the user has set lower already stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (bound, bound))
