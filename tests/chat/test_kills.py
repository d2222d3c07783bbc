"""kill -9 at random moments of saving, streaming, importing, migrating and repairing.

`make test ARGS="tests/chat/test_kills.py --kills 60"` is the long run; `-s` prints what it found.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.repair.check_file import check_file
from exlchat.chat.store.backup import backups
from exlchat.chat.store.conversations import ConversationStore
from tests.chat.killed_writer import open_until_killed, repair_until_killed, write_until_killed
from tests.chat.test_migrations import of_version

LOST_SECONDS = 0.5


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    many: int = request.config.getoption("--kills")
    return many


def killed(victim: Callable[..., None], *arguments: Any, after: float) -> tuple[list[tuple[Any, ...]], float, bool]:
    """What a program said before it was killed `after` seconds of work, when that was, and whether it still ran."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.chat.killed_writer"])
    receives, sends = processes.Pipe(duplex=False)
    process = processes.Process(target=victim, args=(*arguments, sends))
    process.start()
    sends.close()
    first = receives.recv()
    said = [first, *until(receives, time.monotonic() + after)]
    moment = time.monotonic()
    process.kill()
    said += until(receives, None)
    process.join()
    return said, moment, process.exitcode == -9


def until(receives: Connection, deadline: float | None) -> list[tuple[Any, ...]]:
    """All that comes before `deadline`, or before the end. A message cut by the kill is none."""
    said = []
    try:
        while receives.poll(None if deadline is None else max(0.0, deadline - time.monotonic())):
            said.append(receives.recv())
            if deadline is not None and time.monotonic() > deadline:
                break
    except (EOFError, OSError):
        pass
    return said


def assert_sound(path: Path, folder: Path) -> None:
    """SQLite and `sessions check` find nothing wrong with what the kill has left, each in a copy of its own."""
    for judge in ("sqlite", "check"):
        (folder / judge).mkdir(parents=True)
        copy = folder / judge / path.name
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        if judge == "check":
            # An answer that nobody writes any more is ended by the next start.
            assert [one.text for one in check_file(copy) if "writes answer" not in one.text] == []
            assert [file.name for file in copy.parent.glob("*.damaged-*")] == []
        else:
            with closing(sqlite3.connect(copy)) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    shutil.rmtree(folder)


def lost_seconds(store: ConversationStore, said: list[tuple[Any, ...]], moment: float) -> float:
    """How long before the kill the first text was shown that is not on disk."""
    lengths: dict[str, int] = {}
    for one in said:
        if one[0] == "shown" and one[1] not in lengths:
            # An answer without a word on disk is taken out by the next start.
            found = store._db.execute("SELECT length(text) FROM message WHERE id = ?", (one[1],)).fetchone()
            lengths[one[1]] = 0 if found is None else found[0]
    return max([moment - one[2] for one in said if one[0] == "shown" and one[3] > lengths[one[1]]], default=0.0)


def test_kills_lose_nothing_that_was_kept(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "c.db"
    recovered, worst = 0, 0.0
    for seed in range(kills):
        chance = random.Random(seed)
        after = chance.choice([0.02, 0.1, 0.1, 0.8]) * chance.random()
        said, moment, _ = killed(write_until_killed, path, seed, after=after)
        assert_sound(path, tmp_path / "copies")
        store = ConversationStore(path)
        recovered += store.recovered
        assert store.check() == [], seed
        for one in said:
            match one:
                case ("kept", ident, text):
                    row = store._db.execute("SELECT text FROM message WHERE id = ?", (ident,)).fetchone()
                    assert row == (text,), seed
                case ("imported", ident, many):
                    assert len(store.load(ident).branch) == many, seed
        for what in ("draft", "title"):
            assert_newest(store, said, what)
        worst = max(worst, lost_seconds(store, said, moment))
        assert worst <= LOST_SECONDS, seed
        assert store.load(said[0][1]) is not None
        assert store._db.execute("SELECT count(*) FROM message WHERE status = 'streaming'").fetchone() == (0,)
        store.close()
    sys.stdout.write(f"\n{kills} kills: {recovered} in mid-answer, at most {worst:.2f} s of text lost\n")
    assert recovered > kills // 20, "some were killed in mid-answer"
    assert backups(path) == []
    for file in tmp_path.iterdir():
        os.utime(file, (1.0, 1.0))
    ConversationStore(path).close()
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"], "nothing of the killed stays behind"


def assert_newest(store: ConversationStore, said: list[tuple[Any, ...]], what: str) -> None:
    """The last draft or title that was said to be kept is there, or the one that was being written."""
    kept = [one[2] for one in said if one[0] == what]
    begun = [one[2] for one in said if one[0] == f"{what} begun"]
    undone = what == "title"  # which an undo takes back
    if not kept or undone:
        return
    assert store.draft(said[0][1]) in {kept[-1], begun[-1]}


@pytest.mark.parametrize("version", [1, 3])
def test_kills_of_a_migration_leave_all_that_was_there(tmp_path: Path, kills: int, version: int) -> None:
    ran = 0
    for seed in range(max(2, kills // 6)):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        path = of_version(folder / "c.db", version)
        _, _, cut = killed(open_until_killed, path, after=random.Random(seed).random() * 0.05)
        ran += cut
        with closing(ConversationStore(path)) as store:
            assert store.check() == []
            assert len(store.read_tree("named").messages) == 5
            assert {row.id for row in store.list_conversations()} == {"long", "named", "c"}
        for copy in backups(path):
            with closing(sqlite3.connect(copy)) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    sys.stdout.write(f"\n{ran} of {max(2, kills // 6)} migrations were cut\n")


def damaged(path: Path) -> None:
    """SQLite reads it no more: the last third is gone."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3 // 4096 * 4096])


def out_of_order(path: Path) -> None:
    """A whole file in which a tip leads nowhere and an index does not agree."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE conversation SET tip_id = 'nowhere'")
        db.execute("DELETE FROM searchable WHERE rowid % 3 = 0")
        db.commit()


@pytest.mark.parametrize("harm", [damaged, out_of_order])
def test_kills_of_a_repair_cost_nothing(tmp_path: Path, kills: int, harm: Callable[[Path], None]) -> None:
    whole = tmp_path / "whole.db"
    with closing(ConversationStore(whole)) as store:
        ident = store.create_conversation().id
        for number in range(150):
            store.add_message(ident, "user", f"said {number} " * 60)
    harm(whole)
    copy = tmp_path / "copy.db"
    shutil.copy(whole, copy)
    began = time.monotonic()
    check_file(copy, repair=True)
    takes = time.monotonic() - began
    expected = texts(copy)
    ran = 0
    for seed in range(max(2, kills // 6)):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        path = folder / "c.db"
        shutil.copy(whole, path)
        _, _, cut = killed(repair_until_killed, path, after=random.Random(seed).random() * takes)
        ran += cut
        check_file(path, repair=True)
        assert check_file(path) == []
        assert texts(path) == expected, seed
    sys.stdout.write(f"\n{ran} of {max(2, kills // 6)} repairs were cut, which took {takes:.2f} s each\n")


def texts(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [text for (text,) in db.execute("SELECT text FROM message ORDER BY text")]
