"""Runs nvcc: one process a source file, as many at once as there are cores, then one that links."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc
from exlchat.ext.targets import Targets

COMPILE_FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-Xcompiler=-fPIC", "-Xptxas=-v")
# torch puts another CUDA runtime into the process: none of ours may be seen from outside, nor the other one be taken.
LINK_FLAGS = (
    "-shared",
    "-cudart=static",
    "-Xcompiler=-static-libstdc++,-static-libgcc",
    "-Xlinker=--exclude-libs,ALL",
    "-Xlinker=--no-undefined",
)
FLAGS = (*COMPILE_FLAGS, *LINK_FLAGS)

_HEARTBEAT = 0.5
_POLL = 0.02
_TROUBLE = re.compile(r"\berror\b|\bfatal\b|cannot find|undefined reference", re.IGNORECASE)
_CRASH = re.compile(r"died due to signal|Segmentation fault|core dumped", re.IGNORECASE)
_NEWEST_GCC = re.compile(r"gcc versions later than (\d+)")
_LONGEST_COMPLAINT = 240
_LAST_LINES = 2


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is: `done` of `total` steps. Comes at least twice a second while nvcc runs.

    `waiting`: nothing is compiled here, because another process is building the same.
    """

    text: str
    done: int
    total: int
    waiting: bool = False


OnProgress = Callable[[BuildProgress], None]
"""An exception it raises stops the build, and comes out of it."""


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    command: Sequence[str]
    output: Path


@dataclass(frozen=True, slots=True)
class _Running:
    job: _Job
    process: subprocess.Popen[bytes]


_compilers: set[subprocess.Popen[bytes]] = set()
"""What runs now in this process, for `end_compilers`."""

_starting = threading.Lock()
"""Held while a compiler is started and not known yet."""


def compile_library(
    nvcc: Nvcc, files: Sequence[Path], targets: Targets, library: Path, *, log: Path, on_progress: OnProgress
) -> None:
    """Compiles `files` and links them into `library`; objects are put beside it.

    Args:
        nvcc: the compiler.
        files: the `.cu` files.
        targets: which code is made.
        library: the shared library to write; its folder exists.
        log: the file that the compiler's whole output, with registers and spills of each kernel, is written to.
        on_progress: told of each finished step.

    Raises:
        BuildError: nvcc rejects a file: which, its first complaint, and where the rest is.
    """
    cores = len(os.sched_getaffinity(0))
    threads = [f"--threads={cores // len(files)}"] if len(targets.names) > 1 and cores >= 2 * len(files) else []
    objects = [library.parent / f"{path.stem}.o" for path in files]
    compile_flags = [*COMPILE_FLAGS, *targets.flags, *threads]
    jobs = [
        _Job(path.name, [str(nvcc.path), *compile_flags, "-c", str(path), "-o", str(made)], made.with_suffix(".txt"))
        for path, made in zip(files, objects, strict=True)
    ]
    folders = [f"-L{folder}" for folder in nvcc.library_folders]
    link_command = [str(nvcc.path), *LINK_FLAGS, *folders, *map(str, objects), "-o", str(library)]
    link = _Job(library.name, link_command, library.with_suffix(".txt"))
    total = len(jobs) + 1
    with log.open("wb") as report:
        _run_all(jobs, cores, report, lambda done, text: on_progress(BuildProgress(f"compiling {text}", done, total)))
        _run_all([link], 1, report, lambda _done, text: on_progress(BuildProgress(f"linking {text}", total - 1, total)))
    on_progress(BuildProgress(f"built {library.name}", total, total))


def _run_all(jobs: Sequence[_Job], workers: int, log: IO[bytes], report: Callable[[int, str], None]) -> None:
    """Runs all jobs, at most `workers` at once; whatever goes wrong, none is left running."""
    waiting, running = deque(jobs), list[_Running]()
    reported = 0.0
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                _start(waiting.popleft(), running)
            ended = [entry for entry in running if entry.process.poll() is not None]
            running = [entry for entry in running if entry not in ended]
            for entry in ended:
                _finish(entry, log)
            if ended or time.monotonic() - reported > _HEARTBEAT:
                done = len(jobs) - len(waiting) - len(running)
                report(done, ", ".join(entry.job.name for entry in running) or jobs[-1].name)
                reported = time.monotonic()
            if not ended:
                time.sleep(_POLL)
    finally:
        for entry in running:
            _kill(entry.process)
            entry.process.wait()
            _compilers.discard(entry.process)


@atexit.register
def end_compilers() -> None:
    """Kills every compiler that this process started. For an end that no exception announces, such as `os._exit`.

    May be called in a signal handler. Waits a second at most, for a compiler that another thread is just starting.
    """
    started = _starting.acquire(timeout=1.0)
    for process in tuple(_compilers):
        _kill(process)
    if started:
        _starting.release()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # nvcc's own children (cicc, ptxas) are in its group; killing nvcc alone would leave them at work.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _start(job: _Job, running: list[_Running]) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    with job.output.open("wb") as output, _undisturbed(), _starting:
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        _compilers.add(process)
        running.append(_Running(job, process))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl+c is heard behind this block, not in it: a compiler that runs but is not known yet would be left at work."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _finish(entry: _Running, log: IO[bytes]) -> None:
    """Adds the output of an ended process to the log.

    Raises:
        BuildError: it failed.
    """
    _compilers.discard(entry.process)
    said = entry.job.output.read_bytes()
    log.write(f"$ {' '.join(entry.job.command)}\n".encode() + said + b"\n")
    log.flush()
    if entry.process.returncode != 0:
        complaint = _complaint(said.decode(errors="replace"), entry.process.returncode)
        raise BuildError(f"nvcc could not make {entry.job.name}: {complaint}; the whole output is in {log.name}")


def _complaint(said: str, code: int) -> str:
    """Why a compiler failed, in one printable line: what is known to happen, else its first error, else its end."""
    if "unsupported GNU version" in said:
        newest = _NEWEST_GCC.search(said)
        known = f" (it takes g++ up to {newest[1]})" if newest else ""
        return (
            f"the C++ compiler is newer than this nvcc knows{known}; install an older g++ and name it in NVCC_CCBIN, "
            "or name a newer nvcc: exlchat build-ext --nvcc PATH"
        )
    if "No space left on device" in said:
        return "the disk is full; free space in the cache folder and where temporary files go"
    if code == -signal.SIGKILL or "Killed" in said:
        return "it was killed, perhaps for want of memory"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = " / ".join(lines[-_LAST_LINES:])
    if code < 0 or _CRASH.search(said):
        end = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return _printable(f"it crashed{end}{': ' if last else ''}{last}")
    errors = [line for line in lines if _TROUBLE.search(line)]
    return _printable(errors[0] if errors else last or f"exit code {code}")


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)[:_LONGEST_COMPLAINT]
