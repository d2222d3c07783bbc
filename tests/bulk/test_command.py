"""`exlchat run` as a program: its files, how it is stopped and killed, and what it says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from exlchat import paths
from tests.patience import PATIENCE

GUIDE = ("-m", "guide", "--device", "cpu", "--temperature", "0")
pytestmark = pytest.mark.skipif(not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet")


def started(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "EXLCHAT_HOME": str(folder / "home"), "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "exlchat", "run", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def ended(process: subprocess.Popen[bytes], text: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(text, timeout=4 * PATIENCE)
    return process.returncode, out.decode(), err.decode()


def asked(folder: Path, count: int, tokens: int = 4) -> Path:
    path = folder / "in.jsonl"
    lines = ({"custom_id": f"q{one}", "prompt": f"Question {one}?", "max_tokens": tokens} for one in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def said(path: Path) -> list[Any]:
    """All of the answers but what is of the moment at which they were made."""
    found = []
    for line in path.read_bytes().splitlines():
        value = json.loads(line)
        body = value["response"]["body"]
        for name in ("id", "created", "exlchat"):
            del body[name]
        del body["usage"]["prompt_tokens_details"]
        found.append(value)
    return found


def until_it_grows(path: Path, process: subprocess.Popen[bytes], size: int) -> None:
    end = time.monotonic() + 4 * PATIENCE
    while process.poll() is None and (not path.exists() or path.stat().st_size <= size):
        assert time.monotonic() < end, "no answer has come"
        time.sleep(0.005)


def test_kills_change_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """`--kills 100` has a thousand requests killed a hundred times; here it is a twelfth of that."""
    kills = max(request.config.getoption("--kills") // 4, 1) if request.config.getoption("--kills") < 50 else 100
    asked(tmp_path, 10 * kills)
    code, _, err = ended(started(tmp_path, "in.jsonl", "-o", "whole.jsonl", *GUIDE))
    assert (code, err) == (0, "")
    path, chance, last = tmp_path / "killed.jsonl", random.Random(7), b""
    for _ in range(kills):
        process = started(tmp_path, "in.jsonl", "-o", "killed.jsonl", *GUIDE)
        until_it_grows(path, process, len(last))
        time.sleep(chance.random() * 0.2)
        process.kill()
        ended(process)
        kept = path.read_bytes()
        # What was there is there: nothing is lost, and nothing is asked twice.
        assert kept.startswith(last[: last.rfind(b"\n") + 1])
        last = kept
    code, _, err = ended(started(tmp_path, "in.jsonl", "-o", "killed.jsonl", *GUIDE))
    assert code == 0
    assert "have been answered already" in err
    assert said(path) == said(tmp_path / "whole.jsonl")
    assert not list(tmp_path.glob("*.lock"))


def test_ctrl_c_ends_in_order_and_the_same_command_goes_on(tmp_path: Path) -> None:
    asked(tmp_path, 400, tokens=30)
    process = started(tmp_path, "in.jsonl", "-o", "out.jsonl", *GUIDE)
    until_it_grows(tmp_path / "out.jsonl", process, 0)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130
    there = len(said(tmp_path / "out.jsonl"))
    assert err == f"exlchat: {400 - there} requests are left; the same command goes on\n"
    assert f"answered      {there} of 400, 0 before" in out
    report = json.loads((tmp_path / "out.jsonl.report.json").read_text())
    assert (report["answered"], report["left"], report["model"]) == (there, 400 - there, "guide")


def test_plain_text_from_a_pipe_with_options_for_all(tmp_path: Path) -> None:
    (tmp_path / "colour.json").write_text('{"enum": ["red", "green"]}')
    options = ("--schema", "colour.json", "--system", "Answer.", "--max-tokens", "9")
    process = started(tmp_path, "-", "-o", "out.jsonl", *GUIDE, *options, stdin=subprocess.PIPE)
    code, out, err = ended(process, b"Which one?\n\nAnd now?\n")
    assert (code, err) == (0, "")
    assert "answered      2 of 2" in out
    lines = said(tmp_path / "out.jsonl")
    assert [one["custom_id"] for one in lines] == ["request-1", "request-3"]
    for one in lines:
        assert json.loads(one["response"]["body"]["choices"][0]["message"]["content"]) in ("red", "green")


def test_as_many_find_room_as_run_at_a_time_however_short_their_context(tmp_path: Path) -> None:
    asked(tmp_path, 24, tokens=12)
    code, _, err = ended(started(tmp_path, "in.jsonl", "-o", "out.jsonl", *GUIDE, "--context", "256"))
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "out.jsonl.report.json").read_text())["rows"] > 4


def test_other_options_are_another_run(tmp_path: Path) -> None:
    asked(tmp_path, 2)
    assert ended(started(tmp_path, "in.jsonl", "-o", "out.jsonl", *GUIDE))[0] == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    for more in (("--system", "Be brief."), ("--preset", "wild"), ("--max-tokens", "3")):
        code, out, err = ended(started(tmp_path, "in.jsonl", "-o", "out.jsonl", *GUIDE, *more))
        assert (code, out) == (1, "")
        assert err.startswith("exlchat: out.jsonl: is of a run with another model or other options; give those again")
    assert (tmp_path / "out.jsonl").read_bytes() == before
    code, out, err = ended(started(tmp_path, "in.jsonl", "-o", "out.jsonl", *GUIDE))
    assert (code, out, err) == (0, "", "exlchat: 2 requests have been answered already\n")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("in.jsonl", "-o", "out.jsonl"), 1, "in.jsonl: line 2, column 12: not JSON"),
        (("nowhere.jsonl", "-o", "out.jsonl"), 1, "nowhere.jsonl: there is no such file"),
        ((".", "-o", "out.jsonl"), 1, "not a plain file"),
        (("-o", "out.jsonl"), 2, "FILE"),
        (("in.jsonl", "-o", "out.jsonl", "--rows", "0"), 2, "--rows"),
        (("in.jsonl", "-o", "out.jsonl", "--score", "--remote", "http://127.0.0.1:1"), 2, "--score needs a model"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_loaded(
    tmp_path: Path, arguments: Sequence[str], code: int, line: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": b}\n')
    found, out, err = ended(started(tmp_path, *arguments, stdin=subprocess.DEVNULL))
    assert (found, out) == (code, "")
    assert line in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()
