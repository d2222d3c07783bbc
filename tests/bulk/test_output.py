"""The file of answers is the only state of a run: what it takes over, what it refuses, and how it is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exlchat.bulk.lines import Lines
from exlchat.bulk.output import Output, OutputError, opened


def lines_of(*prompts: str) -> Lines:
    data = "".join(json.dumps({"id": f"q{number}", "prompt": one}) + "\n" for number, one in enumerate(prompts))
    return Lines("in.jsonl", data.encode(), plain=False)


def answers(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, lines: Lines, *places: int, status: int = 200, run: str = "run") -> None:
    with opened(path, lines, run) as output:
        for place in places:
            output.write(place, status, {"said": place})


def test_what_is_there_is_done(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", lines_of("a", "b", "c")
    write(path, lines, 2, 0)
    before = path.read_bytes()
    with opened(path, lines, "run") as output:
        assert output.done == {0, 2}
        assert (output.changed, output.failed) == (0, 0)
    assert path.read_bytes() == before
    assert [(one["custom_id"], one["response"]["body"]) for one in answers(path)] == [
        ("q2", {"said": 2}),
        ("q0", {"said": 0}),
    ]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.jsonl"]


def test_a_torn_last_line_is_cut_wherever_it_was_torn(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", lines_of("a", "b")
    write(path, lines, 0, 1)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        with opened(path, lines, "run") as output:
            assert output.done == {0}
            output.write(1, 200, {"said": 1})
        assert path.read_bytes() == whole


def test_each_request_has_one_answer_in_the_end(tmp_path: Path) -> None:
    """What has changed and what has failed is taken out before it is asked again."""
    path = tmp_path / "out.jsonl"
    lines = lines_of("a", "b", "c")
    write(path, lines, 0, 1)
    write(path, lines, 2, status=400)
    with opened(path, lines_of("a", "other", "c"), "run") as output:
        assert output.done == {0}
        assert (output.changed, output.failed) == (1, 1)
    assert [one["custom_id"] for one in answers(path)] == ["q0"]


def test_answers_are_sorted_when_all_are_there(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", lines_of("a", "b", "c", "d")
    path.touch(0o640)
    path.chmod(0o640)
    with opened(path, lines, "run") as output:
        for place in (3, 1, 0, 2):
            output.write(place, 200, {"said": place})
        output.sort()
    assert [one["custom_id"] for one in answers(path)] == ["q0", "q1", "q2", "q3"]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"my notes\n", "line 1 is not of exlchat run"),
        (b'{"a": 1}\n', "line 1 is not of exlchat run"),
        (b'{"custom_id": "q0", "exlchat": {"run": "other", "request": "x"}}\n', "another model or other options"),
        (b'{"custom_id": "q9", "exlchat": {"run": "run", "request": "x"}}\n', "answers 'q9', which nobody asks for"),
        (b'{"custom_id": ["\\u001b"], "exlchat": {"run": "run"}}\n', "which nobody asks for"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(OutputError) as caught, opened(path, lines_of("a"), "run"):
        pass
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", lines_of("a")
    with opened(path, lines, "run") as output:
        with pytest.raises(OutputError, match="another run writes it"), opened(path, lines, "run"):
            pass
        output.write(0, 200, {})
    with opened(path, lines, "run") as output:
        assert output.done == {0}


@pytest.mark.parametrize("name", ["folder", "no/such/folder/out.jsonl", "pipe", "a\0b"])
def test_what_no_file_can_be_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError) as caught, opened(tmp_path / name, lines_of("a"), "run"):
        pass
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """Every limit of size that a file can have, so that every byte is the one that does not fit."""
    lines = lines_of("a", "b")
    probe = tmp_path / "probe.jsonl"
    write(probe, lines, 0, 1)
    whole = probe.read_bytes()
    first = whole.index(b"\n") + 1
    for size in (first, first + 1, len(whole) - 1):
        path = tmp_path / f"{size}.jsonl"
        pid = os.fork()
        if pid == 0:
            os._exit(_fill(path, lines, size))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert path.read_bytes() == whole[:first]


def _fill(path: Path, lines: Lines, size: int) -> int:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        with opened(path, lines, "run") as output:
            output.write(0, 200, {"said": 0})
            output.write(1, 200, {"said": 1})
    except OutputError as error:
        return 0 if "cannot be written (file too large)" in str(error) else 2
    return 1


def test_sorting_needs_no_second_reading_of_what_is_sorted(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.jsonl", lines_of("a", "b")
    write(path, lines, 0, 1)
    inode = path.stat().st_ino
    output = Output(path, lines, "run")
    output.sort()
    output.close()
    assert path.stat().st_ino == inode
