"""A conversion that is killed at any moment goes on, and gives the same bytes as one that was not."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.convert.sources import save_source

_COMMAND = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from exlchat.engine.convert.run import Wishes, convert
source, out = map(Path, sys.argv[1:])
print("begun", flush=True)
wishes = Wishes(source, out, (4.0,), torch.device("cpu"), tokens=768, checked=512)
convert(wishes, lambda step: print(step, flush=True), print)
"""


def digest(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def start(source: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _COMMAND, source, out], stdout=subprocess.PIPE, text=True)


def test_the_same_bytes_after_any_kill(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = save_source("llama", tmp_path / "source")
    whole = start(source, tmp_path / "whole")
    assert whole.stdout is not None
    steps = len(whole.stdout.read().splitlines())
    assert whole.wait() == 0
    draws = random.Random(7)
    kills = max(int(request.config.getoption("--kills")) // 10, 3)
    for _ in range(kills):
        child = start(source, tmp_path / "out")
        assert child.stdout is not None
        for _ in range(draws.randrange(1, steps)):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    last = start(source, tmp_path / "out")
    last.communicate()
    assert last.returncode == 0 or (tmp_path / "out").exists()
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
    # What was written stays out of the way of the next.
    assert not list(tmp_path.glob(".*unfinished"))
