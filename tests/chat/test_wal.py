"""What of a WAL counts: SQLite's own `integrity_check` and what it reads say what `exlchat sessions check` must."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from exlchat.chat.repair.check_file import check_file
from exlchat.chat.repair.sqlite_pages import is_cut, read_wal
from exlchat.chat.store.conversations import ConversationStore

WRITER = """
import os, signal, sqlite3, sys
from exlchat.chat.store.conversations import ConversationStore
from pathlib import Path

path = Path(sys.argv[1])
store = ConversationStore(path)
ident = store.create_conversation().id
for number in range(20):
    store.add_message(ident, "user", f"kept {number} " * 50)
BEFORE
db = store._db
db.execute("PRAGMA cache_size = 10")
db.execute("PRAGMA cache_spill = 10")
db.execute("BEGIN IMMEDIATE")
for number in range(150):
    db.execute(
        "INSERT INTO message (id, conversation_id, role, text, created_at, status, token_ids) "
        "VALUES (?, ?, 'user', ?, 1.0, 'complete', x'')", (f"lost{number}", ident, "x" * 3000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_in_a_transaction(path: Path, before: str = "") -> bytes:
    """A database whose writer was killed in a transaction that had outgrown its cache; its WAL."""
    made = subprocess.run([sys.executable, "-c", WRITER.replace("BEFORE", before), str(path)], check=False)
    assert made.returncode == -9
    return Path(f"{path}-wal").read_bytes()


def judged_by_sqlite(path: Path, folder: Path) -> tuple[list[tuple[str]], int]:
    """Its verdict and the number of messages that it reads, of a copy: looking moves what is in the WAL."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{folder / path.name}{suffix}")
    with closing(sqlite3.connect(folder / path.name)) as db:
        verdict = db.execute("PRAGMA integrity_check").fetchall()
        return verdict, db.execute("SELECT count(*) FROM message").fetchone()[0]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="nothing-yet-in-the-file"),
        pytest.param("store._db.execute('PRAGMA wal_checkpoint(TRUNCATE)')", id="all-in-the-file"),
        # The next frames begin at the head of the WAL again, and old ones with other salts follow them.
        pytest.param(
            "store._db.execute('PRAGMA wal_autocheckpoint = 0')\n"
            "for number in range(100): store.add_message(ident, 'user', 'y' * 9000)\n"
            "store._db.execute('PRAGMA wal_checkpoint(RESTART)')\n"
            "store.add_message(ident, 'user', 'after the restart')",
            id="old-frames-behind",
        ),
    ],
)
def test_frames_of_a_transaction_that_never_ended_do_not_count(tmp_path: Path, before: str) -> None:
    path = tmp_path / "c.db"
    wal = killed_in_a_transaction(path, before)
    assert len(wal) > 150 * 3000, "what was not committed has reached the WAL"
    verdict, messages = judged_by_sqlite(path, tmp_path / "copy")
    assert verdict == [("ok",)]
    assert check_file(path, repair=True) == []
    assert not list(tmp_path.glob("*.damaged-*"))
    store = ConversationStore(path)
    assert store.counts()["messages"] == messages
    store.close()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_commit_that_was_killed_after_any_of_its_frames(tmp_path: Path, checkpointed: bool) -> None:
    """SQLite writes the frames one by one, the first page, which says how many there are, before the others."""
    whole = tmp_path / "whole.db"
    store = ConversationStore(whole)
    store._db.execute("PRAGMA wal_autocheckpoint = 0")
    ident = store.create_conversation().id
    store.add_message(ident, "user", "kept " * 2000)
    if checkpointed:
        store._db.execute("PRAGMA wal_checkpoint(RESTART)")
    kept = Path(f"{whole}-wal").stat().st_size if not checkpointed else 32
    store.add_message(ident, "user", "never kept " * 4000)
    base, wal = whole.read_bytes(), Path(f"{whole}-wal").read_bytes()
    store.close()
    if checkpointed:
        # The rest is of the round before; where it ended up does not matter.
        wal = wal[: 32 + (4096 + 24) * next(n for n in range(1, 99) if wal[32 + 4120 * n :][8:16] != wal[16:24])]
    assert len(wal) > kept + 8 * 4120
    for number, end in enumerate(range(kept, len(wal), 4120)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        path = folder / "c.db"
        path.write_bytes(base)
        Path(f"{path}-wal").write_bytes(wal[:end])
        assert judged_by_sqlite(path, folder / "copy") == ([("ok",)], 1)
        assert check_file(path, repair=True) == []
        assert [file.name for file in folder.glob("c.db*")] == ["c.db"]


def test_a_kept_transaction_is_read_and_one_that_never_ended_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    wal = killed_in_a_transaction(path)
    log = read_wal(wal, 4096)
    assert b"kept 19" in b"".join(log.committed.values())
    assert b"lost0" not in b"".join(log.committed.values())
    assert b"lost0" in b"".join(log.doubted.values())


def with_big_endian_checksums(wal: bytes, size: int) -> bytes:
    """The same WAL as a machine with the other byte order writes it (https://sqlite.org/walformat.html, 4.2)."""

    def sums(data: bytes, one: int, two: int) -> tuple[int, int]:
        for x, y in struct.iter_unpack(">2I", data):
            one = (one + x + two) % 2**32
            two = (two + y + one) % 2**32
        return one, two

    head = struct.pack(">I", 0x377F0683) + wal[4:24]
    last = sums(head, 0, 0)
    pieces = [head, struct.pack(">2I", *last)]
    for at in range(32, len(wal), size + 24):
        frame, page = wal[at : at + 24], wal[at + 24 : at + 24 + size]
        if frame[8:16] != wal[16:24]:
            break
        last = sums(page, *sums(frame[:8], *last))
        pieces += [frame[:16], struct.pack(">2I", *last), page]
    return b"".join(pieces)


@pytest.mark.parametrize("size", [512, 4096, 65536])
@pytest.mark.parametrize("big_endian", [False, True])
def test_any_page_size_and_byte_order(tmp_path: Path, size: int, big_endian: bool) -> None:
    path, copy = tmp_path / "c.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {size}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(5):
            db.execute("INSERT INTO t VALUES (?)", (f"row {number} " + "z" * 3 * size,))
        db.execute("PRAGMA cache_size = 5")
        db.execute("PRAGMA cache_spill = 5")
        db.execute("BEGIN")
        for _ in range(20):
            db.execute("INSERT INTO t VALUES (?)", ("never kept " + "w" * 2 * size,))
        base, wal = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        db.execute("ROLLBACK")
    wal = with_big_endian_checksums(wal, size) if big_endian else wal
    log = read_wal(wal, size)
    assert not is_cut(base[:100], len(base), wal)
    copy.write_bytes(base)
    Path(f"{copy}-wal").write_bytes(wal)
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT count(*) FROM t").fetchone() == (5,)
        assert db.execute("PRAGMA page_count").fetchone() == (log.pages,)
    # The connection has moved the pages into the file, where they are now as we have read them.
    moved = copy.read_bytes()
    assert {number: moved[(number - 1) * size : number * size] for number in log.committed} == log.committed
    assert b"never kept" in b"".join(log.doubted.values())
    assert is_cut(moved[:100], len(moved) - size, b""), "the end of the file itself is missing"
