"""What a broken, foreign, full or shared database does, and what a killed process leaves behind."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.database import MIGRATIONS
from tests.chat.unprivileged import assert_unprivileged, public_folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def public() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def one_line_of(error: pytest.ExceptionInfo[StoreError], path: Path) -> str:
    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_an_empty_file_becomes_a_database_of_the_newest_schema(path: Path) -> None:
    path.touch()
    ConversationStore(path).close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_each_migration_applies_to_the_schema_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    store.add_message(conversation.id, "user", "kept")
    store.close()
    later = (*MIGRATIONS, ("ALTER TABLE conversation ADD COLUMN note TEXT", "CREATE TABLE extra (x)"))
    monkeypatch.setattr("exlchat.chat.store.database.MIGRATIONS", later)
    store = ConversationStore(path)
    assert [message.text for message in store.load(conversation.id).branch] == ["kept"]
    store.close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(later),)


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ConversationStore(path).close()
    monkeypatch.setattr(
        "exlchat.chat.store.database.MIGRATIONS",
        (*MIGRATIONS, ("CREATE TABLE extra (x)", "CREATE TABLE conversation (x)")),
    )
    with pytest.raises(StoreError):
        ConversationStore(path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)


def test_a_database_of_a_newer_program_is_refused_and_left_alone(path: Path) -> None:
    ConversationStore(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        ConversationStore(path)
    line = one_line_of(caught, path)
    assert "schema 99" in line
    assert "update exlchat" in line
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        ConversationStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"This is a letter to my aunt, and quite a long one at that. " * 40)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        ConversationStore(path)
    assert "not a conversation database" in one_line_of(caught, path)
    assert path.read_bytes() == before


def test_a_damaged_database_is_named(path: Path) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    for number in range(200):
        store.add_message(conversation.id, "user", f"{number} " * 100)
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        ConversationStore(path).load(conversation.id)
    assert "damaged" in one_line_of(caught, path)


def test_a_read_only_file_is_named(public: Path) -> None:
    path = public / "conversations.db"
    ConversationStore(path).close()
    path.chmod(0o444)

    def check() -> None:
        with pytest.raises(StoreError) as caught:
            ConversationStore(path)
        assert "permission" in one_line_of(caught, path)

    assert_unprivileged(check)


def test_a_read_only_folder_is_named(public: Path) -> None:
    folder = public / "shut"
    folder.mkdir()
    (folder / "conversations.db").touch(0o666)
    (folder / "conversations.db").chmod(0o666)
    folder.chmod(0o555)

    def check() -> None:
        for name in ("conversations.db", "new.db"):
            with pytest.raises(StoreError) as caught:
                ConversationStore(folder / name)
            assert "permissions" in one_line_of(caught, folder / name)

    assert_unprivileged(check)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file or directory"):
        ConversationStore(tmp_path / "nowhere" / "conversations.db")


def test_a_full_disk_fails_one_message_and_nothing_else(path: Path) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    kept = store.add_message(conversation.id, "user", "kept")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError) as caught:
        store.add_message(conversation.id, "user", "x" * 100_000)
    assert "the disk is full" in one_line_of(caught, path)
    assert store.load(conversation.id).tip_id == kept.id
    store._db.execute("PRAGMA max_page_count = 100000")
    store.add_message(conversation.id, "user", "x" * 100_000)
    assert len(store.load(conversation.id).branch) == 2
    store.close()


def test_a_busy_database_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.chat.store.database.BUSY_SECONDS", 0.1)
    store = ConversationStore(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program has kept it busy"):
        store.create_conversation()
    other.execute("ROLLBACK")
    store.create_conversation()
    store.close()


def test_many_programs_may_start_on_a_new_file_at_once(path: Path) -> None:
    errors: list[BaseException] = []

    def start() -> None:
        try:
            ConversationStore(path).close()
        except BaseException as error:
            errors.append(error)

    for _ in range(5):
        path.unlink(missing_ok=True)
        threads = [threading.Thread(target=start) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


WRITER = """
import sys
from pathlib import Path
from exlchat.chat.store.conversations import ConversationStore
store = ConversationStore(Path(sys.argv[1]))
conversation = store.create_conversation()
question = store.add_message(conversation.id, "user", "Q")
first = store.begin_answer(conversation.id, question.id)
store.journal(first.id, "half an ans", [1, 2])
silent = store.begin_answer(conversation.id, question.id)
print(conversation.id, flush=True)
sys.stdin.read()
"""


def test_an_answer_of_a_living_process_is_left_alone_and_of_a_killed_one_becomes_partial(path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    conversation_id = writer.stdout.readline().strip()
    store = ConversationStore(path)
    assert store.recovered == 0
    assert store.load(conversation_id).branch[-1].status == "streaming"
    writer.kill()
    writer.wait()
    assert store.recover() == 1
    answer = store.load(conversation_id).branch[-1]
    assert (answer.text, answer.token_ids, answer.status) == ("half an ans", (1, 2), "partial")
    assert store.recover() == 0
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["conversations.db"]


def test_opening_recovers_by_itself(path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    conversation_id = writer.stdout.readline().strip()
    writer.kill()
    writer.wait()
    store = ConversationStore(path)
    assert store.recovered == 1
    assert [message.text for message in store.load(conversation_id).branch] == ["Q", "half an ans"]
    store.close()


def test_two_stores_of_one_process_respect_each_other_too(path: Path) -> None:
    one, two = ConversationStore(path), ConversationStore(path)
    conversation = one.create_conversation()
    answer = one.begin_answer(conversation.id, None)
    assert two.recover() == 0
    assert two.load(conversation.id).branch[-1].id == answer.id
    one.close()
    assert two.recover() == 0, "an answer without a word is not kept"
    assert two.load(conversation.id).branch == ()
    two.close()


def test_an_empty_answer_that_was_replied_to_is_kept(path: Path) -> None:
    one = ConversationStore(path)
    conversation = one.create_conversation()
    one.begin_answer(conversation.id, None)
    one.add_message(conversation.id, "user", "are you there?")
    one.close()
    two = ConversationStore(path)
    assert [(message.text, message.status) for message in two.load(conversation.id).branch] == [
        ("", "partial"),
        ("are you there?", "complete"),
    ]
    two.close()
