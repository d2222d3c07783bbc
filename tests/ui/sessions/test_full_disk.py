"""`exlchat sessions` on a disk without a byte left: what was said can be read, and the one reason is told."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.cli import main as cli

KILLED = """
import os, sys
from pathlib import Path
from exlchat.chat.store.conversations import ConversationStore
store = ConversationStore(Path(sys.argv[1]))
store.add_message(store.create_conversation().id, "user", "first")
if sys.argv[2] == "killed":
    store.add_message(store.create_conversation().id, "user", "only in the WAL")
    os._exit(0)
store.close()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    handle = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)
    assert shutil.disk_usage(disk).free < 4096


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_full_disk_can_be_read_and_is_named(
    disk: Path, tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(disk))
    (disk / "data").mkdir()
    path = disk / "data" / "conversations.db"
    subprocess.run([sys.executable, "-c", KILLED, str(path), end], check=True)
    Path(f"{path}-shm").unlink(missing_ok=True)
    fill(disk)
    said = {"first"} | ({"only in the WAL"} if end == "killed" else set())
    assert cli.main(["sessions", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in said)
    assert cli.main(["sessions", "show", "last"]) == 0
    assert cli.main(["sessions", "export", "--all", "-o", str(tmp_path / "all.jsonl")]) == 0
    assert all(text in (tmp_path / "all.jsonl").read_text() for text in said)
    capsys.readouterr()
    # The WAL has gone into the database meanwhile, and left room.
    fill(disk)
    for words in (["rename", "last", "other"], ["check"]):
        assert cli.main(["sessions", *words]) == 1
        assert "the disk is full; free some space" in capsys.readouterr().err
    (disk / "filler").unlink()
    assert cli.main(["sessions", "rename", "last", "other"]) == 0
    assert cli.main(["sessions", "check"]) == 0
