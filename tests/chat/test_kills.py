"""A hundred kills at random moments of saving and streaming, on one database."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from exlchat.chat.backup import backups
from exlchat.chat.store import ConversationStore
from tests.chat.killed_writer import write_until_killed

KILLS = 100


def killed(path: Path, seed: int) -> tuple[list[tuple[Any, ...]], float]:
    """What a writer said before it was killed, and when that was."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.chat.killed_writer"])
    receives, sends = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_until_killed, args=(path, seed, sends))
    writer.start()
    sends.close()
    first = receives.recv()
    chance = random.Random(seed)
    said = [first, *until(receives, time.monotonic() + chance.choice([0.02, 0.1, 0.1, 0.8]) * chance.random())]
    moment = time.monotonic()
    writer.kill()
    said += until(receives, None)
    writer.join()
    return said, moment


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


def test_a_hundred_kills_lose_nothing_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    recovered = 0
    for seed in range(KILLS):
        said, moment = killed(path, seed)
        store = ConversationStore(path)
        recovered += store.recovered
        assert store.check() == [], seed
        for _, ident, text in (one for one in said if one[0] == "kept"):
            assert store.message(ident).text == text, seed
        due = {one[1]: one[3] for one in said if one[0] == "shown" and one[2] < moment - 0.5}
        for ident, length in due.items():
            assert len(store.message(ident).text) >= length, seed
        assert store.load(said[0][1]) is not None
        assert store._db.execute("SELECT count(*) FROM message WHERE status = 'streaming'").fetchone() == (0,)
        store.close()
    assert recovered > 10, "many were killed in mid-answer"
    assert backups(path) == []
    for file in tmp_path.iterdir():
        os.utime(file, (1.0, 1.0))
    ConversationStore(path).close()
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"], "nothing of the killed stays behind"
