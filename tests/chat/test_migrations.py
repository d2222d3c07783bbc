"""Databases of every older version are opened with all that they hold, after a copy was made."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from exlchat.chat.store.backup import backups
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.schema import CHANGE, CONVERSATION, IN_PROGRESS, MESSAGE, MIGRATIONS, TAG
from tests.chat.test_store import _VERSION_1, RECORD

_CONTENT = """
INSERT INTO conversation VALUES ('named', 'My own title', 3.0, 4.0, NULL, NULL), ('gone', 'Bye', 1.0, 2.0, 5.0, NULL),
    ('long', 'a question that is much longer than what fits into a title…', 1.0, 9.0, NULL, NULL),
    ('empty', NULL, 1.0, 2.0, NULL, NULL);
INSERT INTO message (id, conversation_id, parent_id, role, text, created_at, status, token_ids, record) VALUES
    ('s', 'named', NULL, 'system', 'Be brief.', 3.0, 'complete', x'', NULL),
    ('n1', 'named', 's', 'user', 'Zwölf Äpfel', 3.0, 'complete', x'', NULL),
    ('n2', 'named', 'n1', 'assistant', 'first answer', 3.0, 'complete', x'01000000', NULL),
    ('n3', 'named', 'n1', 'assistant', 'second answer', 3.5, 'partial', x'02000000', NULL),
    ('n4', 'named', 'n3', 'assistant', 'never closed', 3.6, 'streaming', x'', NULL),
    ('g', 'gone', NULL, 'user', 'Bye', 1.0, 'complete', x'', NULL),
    ('l', 'long', NULL, 'user', 'a question that is much longer than what fits into a title of sixty characters', 1.0,
     'complete', x'', NULL);
INSERT INTO answer_in_progress VALUES ('n4', 'a-dead-one', 'n3');
UPDATE conversation SET tip_id = 'n4' WHERE id = 'named';
UPDATE conversation SET tip_id = 'g' WHERE id = 'gone';
UPDATE conversation SET tip_id = 'l' WHERE id = 'long';
"""


def of_version(path: Path, version: int) -> Path:
    old = sqlite3.connect(path)
    old.executescript(_VERSION_1 + _CONTENT)
    if version >= 2:
        old.execute("ALTER TABLE message ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))")
        old.execute("UPDATE message SET pinned = 1 WHERE id = 'n1'")
    if version >= 3:
        old.execute("ALTER TABLE message ADD COLUMN summary TEXT")
        old.execute("UPDATE message SET summary = 'Apples.' WHERE id = 'n2'")
    old.execute(f"PRAGMA user_version = {version}")
    old.commit()
    old.execute("PRAGMA journal_mode = WAL")
    old.close()
    return path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_everything_of_an_older_version_is_there(tmp_path: Path, version: int) -> None:
    path = of_version(tmp_path / "c.db", version)
    store = ConversationStore(path)
    assert store.recovered == 1
    assert [one.text for one in store.load("named").branch] == [
        "Be brief.",
        "Zwölf Äpfel",
        "second answer",
        "never closed",
    ]
    assert store.message("n4").status == "partial"
    assert [one.id for one in store.alternatives("n3")] == ["n2", "n3"]
    assert store.message("n1").pinned is (version >= 2)
    assert store.message("n2").summary == ("Apples." if version >= 3 else None)
    assert store.message("a").record == RECORD
    assert [row.id for row in store.list_conversations()] == ["long", "named", "c"]
    assert [row.id for row in store.list_conversations("deleted")] == ["gone"]
    assert [hit.message_id for hit in store.search("apfel")] == ["n1"]
    assert {hit.message_id for hit in store.search("never")} == {"n4"}
    assert [hit.conversation_id for hit in store.search("own title")] == ["named"]
    assert store.check() == []
    assert store.set_model_title("long", "Questions"), "its title was its first line"
    assert not store.set_model_title("named", "Fruit"), "its title was given"
    assert store.edit("n1", "Zwölf Birnen").edited_from == "n1"
    store.close()
    (copy,) = backups(path)
    assert copy.name.endswith(f"-schema-{version}")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    old = sqlite3.connect(copy)
    assert old.execute("PRAGMA user_version").fetchone() == (version,)
    assert old.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert old.execute("SELECT count(*) FROM message").fetchone() == (9,)
    old.close()
    ConversationStore(path).close()
    assert backups(path) == [copy], "only before a migration"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([path.name, copy.name])


def test_a_copy_can_be_opened_in_the_place_of_the_database(tmp_path: Path) -> None:
    path = of_version(tmp_path / "c.db", 2)
    ConversationStore(path).close()
    (copy,) = backups(path)
    moved = copy.rename(tmp_path / "again.db")
    store = ConversationStore(moved)
    assert [row.id for row in store.list_conversations()] == ["long", "named", "c"]
    store.close()


def test_a_copy_that_cannot_be_made_stops_the_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_version(tmp_path / "c.db", 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("exlchat.chat.store.backup.os.rename", full)
    with pytest.raises(StoreError, match="no space left on device"):
        ConversationStore(path)
    assert [file.name for file in tmp_path.iterdir() if "wal" not in file.name and "shm" not in file.name] == ["c.db"]
    monkeypatch.undo()
    store = ConversationStore(path)
    assert store._db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    store.close()


def test_the_last_few_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    for _ in range(5):
        path.unlink(missing_ok=True)
        ConversationStore(of_version(path, 1)).close()
    assert len(backups(path)) == 3


def test_the_declared_columns_are_those_of_a_new_database(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "c.db")
    declared = {
        "conversation": CONVERSATION,
        "message": MESSAGE,
        "answer_in_progress": IN_PROGRESS,
        "tag": TAG,
        "change": CHANGE,
    }
    for table, columns in declared.items():
        there = [
            (name, kind, bool(required))
            for _, name, kind, required, *_ in store._db.execute(f"PRAGMA table_info ({table})")
        ]
        kinds = {"time": "REAL", "flag": "INTEGER", "ids": "BLOB"}
        named = [(one.name, kinds.get(one.kind, "TEXT"), not one.may_miss) for one in columns]
        assert [one for one in there if one[:2] != ("id", "INTEGER")] == named
    store.close()
