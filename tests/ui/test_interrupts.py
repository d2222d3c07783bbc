"""ctrl+c in a stretch of code that catches every exception, as the import of torch does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.ext.small_library import fake_nvcc, write_sources

PROGRAM = """
import sys, time
from exlchat.ui.interrupts import ctrl_c_ends_at_once

with ctrl_c_ends_at_once(before=lambda: print("tidied", end="", file=sys.stderr, flush=True)):
    try:
        print("ready", flush=True)
        time.sleep(20)
    except BaseException:
        pass
print("went on", flush=True)
"""


def test_ctrl_c_ends_the_program_although_the_code_catches_everything() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    rest, stderr = program.communicate(timeout=60)
    assert (program.returncode, rest, stderr) == (130, "", "tidied")


COMPILING = """
import sys
from pathlib import Path
from exlchat.ext.build import build_library
from exlchat.ext.nvcc import ask_nvcc
from exlchat.ext.targets import Targets
from exlchat.ui.interrupts import ctrl_c_ends_at_once

cache, sources, nvcc = map(Path, sys.argv[1:])
with ctrl_c_ends_at_once():
    build_library(cache, Targets(((9, 0),)), ask_nvcc(nvcc), sources=sources)
"""


def test_ctrl_c_while_kernels_are_compiled_leaves_no_compiler_at_work(tmp_path: Path) -> None:
    started, outlived = tmp_path / "started", tmp_path / "outlived"
    compiling = f"touch {started}; (sleep 2; touch {outlived}) & wait"
    nvcc = fake_nvcc(tmp_path / "nvcc", "13.0", 90, compiling=compiling)
    sources = write_sources(tmp_path / "csrc")
    program = subprocess.Popen([sys.executable, "-c", COMPILING, str(tmp_path / "cache"), str(sources), str(nvcc)])
    while not started.exists():
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=60) == 130
    time.sleep(2.5)
    assert not outlived.exists()
