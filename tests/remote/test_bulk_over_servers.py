"""`exlchat run` over real servers: every line is answered once, by all of them, whatever becomes of one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from exlchat import paths
from exlchat.cli.main import main
from tests.bulk.test_command import asked, ended, started, until_it_grows
from tests.patience import PATIENCE
from tests.remote.programs import ServeProgram, serve_programs

OPTIONS = ("-o", "out.jsonl", "--temperature", "0")
pytestmark = pytest.mark.skipif(not paths.bundled_model().is_dir(), reason="the bundled model has not been made yet")


def lines(folder: Path) -> list[Any]:
    return [json.loads(one) for one in (folder / "out.jsonl").read_bytes().splitlines()]


def texts(folder: Path) -> dict[str, str]:
    """Of all answers, which are all there is."""
    found = lines(folder)
    assert [one["response"]["status_code"] for one in found] == [200] * len(found)
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in found}


def pair(folder: Path, servers: list[ServeProgram], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both under one name, in the folder of the runs."""
    monkeypatch.setenv("EXLCHAT_HOME", str(folder / "home"))
    assert main(["remotes", "add", "pair", *(one.url for one in servers)]) == 0


def answered_by(server: ServeProgram, at_least: int) -> None:
    """A line of its own comes behind each reply."""
    end = time.monotonic() + PATIENCE
    while server.answered < at_least:
        assert time.monotonic() < end, f"{server.answered} of {at_least}"
        time.sleep(0.01)


def test_one_server_answers_all_as_the_model_here_does_and_nothing_twice(tmp_path: Path) -> None:
    asked(tmp_path, 24)
    local = ("-m", "guide", "--device", "cpu", "--kv-cache", "fp32")
    assert ended(started(tmp_path, "in.jsonl", *OPTIONS, *local))[0] == 0
    wanted = texts(tmp_path)
    (tmp_path / "out.jsonl").unlink()
    with serve_programs(tmp_path) as (server,):
        code, out, err = ended(started(tmp_path, "in.jsonl", *OPTIONS, "--remote", server.url))
        assert code == 0, err
        assert "answered      24 of 24, 0 before" in out
        assert texts(tmp_path) == wanted
        answered_by(server, 24)
        before = (tmp_path / "out.jsonl").read_bytes()
        code, out, err = ended(started(tmp_path, "in.jsonl", *OPTIONS, "--remote", server.url))
        assert (code, out) == (0, "")
        assert "24 requests have been answered already" in err
        assert (tmp_path / "out.jsonl").read_bytes() == before
        assert server.answered == 24


def test_two_servers_of_one_name_share_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path, 60, tokens=12)
    with serve_programs(tmp_path, 2) as servers:
        pair(tmp_path, servers, monkeypatch)
        code, out, err = ended(started(tmp_path, "in.jsonl", *OPTIONS, "--remote", "pair"))
        assert code == 0, err
        assert "answered      60 of 60, 0 before" in out
        assert len(texts(tmp_path)) == 60
        for one in servers:
            answered_by(one, 10)
        assert sum(one.answered for one in servers) == 60


def test_a_server_that_is_killed_in_the_middle_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path, 60, tokens=30)
    with serve_programs(tmp_path, 2) as servers:
        pair(tmp_path, servers, monkeypatch)
        process = started(tmp_path, "in.jsonl", *OPTIONS, "--remote", "pair")
        until_it_grows(tmp_path / "out.jsonl", process, 0)
        answered_by(servers[1], 1)
        servers[1].kill()
        code, out, err = ended(process)
        assert code == 0, err
        assert "answered      60 of 60, 0 before" in out
        whole = texts(tmp_path)
        assert len(whole) == len(lines(tmp_path)) == 60
        assert servers[1].answered < 60
        # The one that is left knows what both have done.
        code, out, err = ended(started(tmp_path, "in.jsonl", *OPTIONS, "--remote", "pair"))
        assert (code, out) == (0, "")
        assert "60 requests have been answered already" in err
        assert texts(tmp_path) == whole


def test_the_only_server_is_killed_and_the_same_command_goes_on(tmp_path: Path) -> None:
    asked(tmp_path, 60, tokens=30)
    with serve_programs(tmp_path) as (server,):
        process = started(tmp_path, "in.jsonl", *OPTIONS, "--remote", server.url)
        until_it_grows(tmp_path / "out.jsonl", process, 0)
        server.kill()
        code, _, err = ended(process)
        assert code == 1
        assert "in a row have failed" in err
        assert server.url in err
        kept = [one for one in lines(tmp_path) if one["response"]["status_code"] == 200]
        assert 0 < len(kept) < 60
        server.start()
        code, out, err = ended(started(tmp_path, "in.jsonl", *OPTIONS, "--remote", server.url))
        assert code == 0, err
        assert f"answered      {60 - len(kept)} of 60, {len(kept)} before" in out
        found = {one["custom_id"]: one for one in lines(tmp_path)}
        assert len(found) == len(texts(tmp_path)) == 60
        assert all(found[one["custom_id"]] == one for one in kept)
