"""A conversion that is killed at any moment goes on, and gives the same bytes as one that was not."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from exlchat.engine import ModelError
from tests.engine.convert.sources import converted, save_source

# Each attempt is a process of its own; forked, for torch takes two seconds to import.
_KILLED = """
import os, random, shutil, signal, sys, time, torch
torch.set_num_threads(1)
from pathlib import Path
from exlchat.engine.convert import run
from exlchat.engine.convert.run import Wishes, convert
source, out, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
wishes = Wishes(source, out, (4.0, 3.0), torch.device("cpu"), tokens=512, checked=256, verify=True)
draws = random.Random(7)
made_of, rows_of = {}, run.rows_of

def once(text, tokenizer, tokens, length):
    if (len(text), tokens, length) not in made_of:
        made_of[len(text), tokens, length] = rows_of(text, tokenizer, tokens, length)
    return made_of[len(text), tokens, length]

# The texts are the same for all attempts: the first one, here, encodes them.
run.rows_of = once
try:
    convert(wishes, lambda step: (_ for _ in ()).throw(InterruptedError), lambda line: None)
except InterruptedError:
    shutil.rmtree(f"{out}.work", ignore_errors=True)

def attempt():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        convert(wishes, lambda step: os.write(write, b"."), lambda line: None)
        os._exit(0)
    os.close(write)
    return child, read

child, read = attempt()
steps = 0
while os.read(read, 1):
    steps += 1
assert os.waitpid(child, 0)[1] == 0
out.rename(out.with_name("whole"))
shutil.rmtree(f"{out}.work")
ended = 0
while ended < kills:
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(f"{out}.work", ignore_errors=True)
    finished = False
    while not finished:
        child, read = attempt()
        # What is done already is passed over in fewer steps, so that late moments come up too.
        for _ in range(draws.randrange(1, steps // 3) if ended < kills else 10**9):
            if not os.read(read, 1):
                break
        else:
            time.sleep(draws.random() / 50)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        os.close(read)
        finished = status == 0
        assert finished or status == signal.SIGKILL, status
        ended += not finished
print(ended)
"""


def digest(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_the_same_bytes_after_any_kill(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = save_source("llama", tmp_path / "source", num_hidden_layers=1)
    kills = max(request.config.getoption("--kills") // 3, 3)
    command = [sys.executable, "-c", _KILLED, source, tmp_path / "out", str(kills)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= kills
    files = digest(tmp_path / "out")
    assert {"4bpw/output.safetensors", "3bpw/output.safetensors"} <= files.keys()
    assert files == digest(tmp_path / "whole")
    # What was written stays out of the way of the next.
    assert not list(tmp_path.rglob(".*unfinished"))


def test_a_finished_conversion_is_told_again_and_not_made_again(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "source")
    first = converted(source, tmp_path / "out", 4, 3)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")}
    assert converted(source, tmp_path / "out", 4, 3) == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")} == before
    with pytest.raises(ModelError, match="is there already; nothing is overwritten"):
        converted(source, tmp_path / "out", 4, 3, head_bits=8)
