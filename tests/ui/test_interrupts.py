"""ctrl+c in a stretch of code that catches every exception, as the import of torch does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exlchat.ui.terminal.interrupts import LEAVE_SECONDS
from tests.ext.small_library import fake_nvcc, write_sources
from tests.patience import PATIENCE

PROGRAM = """
import sys, time
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once, signals_end_in_order

tidy = lambda: print("tidied", end="", file=sys.stderr, flush=True)
with signals_end_in_order(), ctrl_c_ends_at_once(before=tidy):
    try:
        print("ready", flush=True)
        time.sleep(20)
    except BaseException:
        pass
print("went on", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_program_although_the_code_catches_everything(number: int) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    began = time.monotonic()
    program.send_signal(number)
    rest, stderr = program.communicate(timeout=60)
    # On a machine that gives it no time it is ended as it is.
    late = time.monotonic() - began > LEAVE_SECONDS
    assert (program.returncode, rest) == (128 + number, "")
    assert stderr == "tidied" or late


COMPILING = """
import sys
from pathlib import Path
from exlchat.ext.build import build_library
from exlchat.ext.compiling import end_compilers
from exlchat.ext.nvcc import ask_nvcc
from exlchat.ext.targets import Targets
from exlchat.ui.terminal.interrupts import at_a_sudden_end, ctrl_c_ends_at_once

at_a_sudden_end(end_compilers)
cache, sources, nvcc = map(Path, sys.argv[1:])
with ctrl_c_ends_at_once():
    build_library(cache, Targets(((9, 0),)), ask_nvcc(nvcc), sources=sources)
"""


def test_ctrl_c_while_kernels_are_compiled_leaves_no_compiler_at_work(tmp_path: Path) -> None:
    started = tmp_path / "started"
    compiling = f"sleep 1000 & echo $! > {started}; wait"
    nvcc = fake_nvcc(tmp_path / "nvcc", "13.0", 90, compiling=compiling)
    sources = write_sources(tmp_path / "csrc")
    program = subprocess.Popen([sys.executable, "-c", COMPILING, str(tmp_path / "cache"), str(sources), str(nvcc)])
    while not started.exists() or not started.read_text().endswith("\n"):
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=60) == 130
    end = time.monotonic() + PATIENCE
    while _runs(int(started.read_text())):
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(process: int) -> bool:
    """Whether it is there, and not only because nobody has asked how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


FORKING = """
import os, signal, time
from exlchat.ui.terminal import interrupts

interrupts.LEAVE_SECONDS = 1.5
with interrupts.signals_end_in_order() as ending:
    child = os.fork()
    if not child:
        while True:
            time.sleep(20)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    time.sleep(2)
    print("went on", ending.code(0))
"""


def test_a_child_that_is_ended_does_not_end_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "-15\nwent on 0\n"


SWALLOWING = """
import signal, sys, time
from exlchat.ui.terminal.interrupts import signals_end_in_order

with signals_end_in_order():
    told = False
    while True:
        try:
            told = told or print("ready", flush=True) or True
            time.sleep(20)
        except BaseException:
            pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_code_that_catches_everything_is_ended_within_two_seconds(number: int) -> None:
    program = subprocess.Popen([sys.executable, "-c", SWALLOWING], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(number)
    assert program.wait(timeout=60) == 128 + number
