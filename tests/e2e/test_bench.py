"""The real `exlchat bench`: to the end, and stopped on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e]

BENCH = [sys.executable, "-m", "exlchat", "bench"]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "EXLCHAT_HOME": str(home)}


def test_the_guide_from_load_to_memory(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = subprocess.run(
        [*BENCH, "guide", "--quick", "--device", "cpu", "--contexts", "64", "--json", str(file)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("guide: EXL2", "load, fp32 cache", "prefill", "decode, fp32 cache", "turn of 50", "beyond weights"):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    content = json.loads(file.read_text())
    assert content["complete"]
    assert [figure["kind"] for figure in content["figures"]] == ["load", "prefill", "decode", "sampled", "turn"]


def test_ctrl_c_prints_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    command = [*BENCH, "--shape", "tiny", "--device", "cpu", "--runs", "100000", "--json", str(file)]
    program = subprocess.Popen(
        [*command, "--contexts", "16,512", "--kv-cache", "fp32"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and '"load"' in file.read_text()):
        assert time.monotonic() < deadline, "nothing was measured"
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (130, "exlchat: stopped; this is what was measured until then\n")
    assert "load, fp32 cache" in out
    assert "turn of" not in out
    assert not json.loads(file.read_text())["complete"]
