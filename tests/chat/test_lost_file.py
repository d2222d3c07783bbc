"""The database is removed, replaced or moved under a running program: nothing is said to be kept that is not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore, LostFileError


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    ConversationStore(other).close()
    other.rename(path)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def lead_elsewhere(path: Path) -> None:
    """The path is a link from here on, to a copy."""
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    path.unlink()
    path.symlink_to(copy)


LOSSES = [remove, replace, remove_folder, move_folder, lead_elsewhere]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "c.db"


def opened(path: Path) -> tuple[ConversationStore, str]:
    store = ConversationStore(path)
    ident = store.create_conversation().id
    store.add_message(ident, "user", "kept")
    return store, ident


@pytest.mark.parametrize("lose", LOSSES)
def test_no_message_is_taken_that_would_be_gone(path: Path, lose: Callable[[Path], None]) -> None:
    store, ident = opened(path)
    lose(path)
    for _ in range(2):
        with pytest.raises(LostFileError) as caught:
            store.add_message(ident, "user", "one more")
        line = str(caught.value)
        assert "\n" not in line
        assert str(path) in line
        assert ("replaced" if path.exists() else "removed") in line
        assert "/save" in line
    assert [one.text for one in store.load(ident).branch] == ["kept"], "what was read is all there is of it"
    store.close()


def test_a_file_that_is_lost_while_it_is_written_is_not_said_to_be_kept(path: Path) -> None:
    store, ident = opened(path)
    store._db.set_trace_callback(lambda statement: path.unlink(missing_ok=True) if "updated_at" in statement else None)
    with pytest.raises(LostFileError):
        store.add_message(ident, "user", "one more")
    store.close()


@pytest.mark.parametrize("lose", LOSSES)
def test_the_conversation_goes_on_where_the_file_was(path: Path, lose: Callable[[Path], None]) -> None:
    store, ident = opened(path)
    other = store.create_conversation().id
    store.add_message(other, "user", "not taken along")
    answer = store.begin_answer(ident, store.load(ident).tip_id)
    lose(path)
    with pytest.raises(LostFileError):
        store.close_answer(answer.id, "an answer", [1], "complete")
    (now,) = store.begin_anew([store.read_tree(ident)])
    store.add_message(now, "user", "after it")
    # What another program reads meanwhile.
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM message WHERE text = 'after it'").fetchone() == (1,)
    store.close()
    again = ConversationStore(path)
    assert [one.text for one in again.load(now).branch] == ["kept", "", "after it"]
    assert again.check() == []
    again.close()


def test_a_copy_that_came_back_is_gone_on_with(path: Path) -> None:
    store, ident = opened(path)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.with_name("copy.db"))) as copy:
        source.backup(copy)
    path.with_name("copy.db").rename(path)
    with pytest.raises(LostFileError, match="replaced"):
        store.add_message(ident, "user", "one more")
    assert store.begin_anew([store.read_tree(ident)]) == [ident]
    store.add_message(ident, "user", "one more")
    assert [one.text for one in store.load(ident).branch] == ["kept", "one more"]
    assert len(store.list_conversations()) == 1
    store.close()


def test_what_took_its_place_and_is_no_database_of_ours_is_left_alone(path: Path) -> None:
    store, ident = opened(path)
    letter = path.with_name("letter")
    letter.write_text("Dear aunt, this is no database at all. " * 50)
    letter.rename(path)
    with pytest.raises(Exception, match="not a conversation database"):
        store.begin_anew([store.read_tree(ident)])
    assert path.read_text().startswith("Dear aunt")
    assert [one.text for one in store.load(ident).branch] == ["kept"]
    store.close()
    assert path.read_text().startswith("Dear aunt")


def test_what_took_its_place_is_whole_when_the_program_has_ended(path: Path) -> None:
    store, ident = opened(path)
    other = path.with_name("other.db")
    theirs = ConversationStore(other)
    told = theirs.create_conversation().id
    for number in range(50):
        theirs.add_message(told, "user", f"theirs {number} " * 100)
    theirs.close()
    store.add_message(ident, "user", "ours " * 3000)
    before = other.read_bytes()
    other.rename(path)
    store.close()
    assert path.read_bytes() == before
    again = ConversationStore(path)
    assert again.check() == []
    assert len(again.load(told).branch) == 50
    again.close()


def test_what_was_said_last_is_in_a_file_that_was_moved(path: Path) -> None:
    store, ident = opened(path)
    moved = path.with_name("moved.db")
    path.rename(moved)
    store.begin_anew([])
    store.close()
    found = ConversationStore(moved)
    assert [one.text for one in found.load(ident).branch] == ["kept"]
    found.close()


@pytest.mark.parametrize("names", [["-wal"], ["-shm"], ["-wal", "-shm"]])
def test_what_is_only_in_a_removed_wal_is_brought_into_the_file(path: Path, names: list[str]) -> None:
    store, ident = opened(path)
    for name in names:
        Path(f"{path}{name}").unlink()
    store.add_message(ident, "user", "one more")
    # As a kill leaves it: nothing is closed.
    dead = path.with_name("dead.db")
    for suffix in ("", "-wal"):
        if os.path.exists(f"{path}{suffix}"):
            shutil.copy(f"{path}{suffix}", f"{dead}{suffix}")
    found = ConversationStore(dead)
    assert [one.text for one in found.load(ident).branch] == ["kept", "one more"]
    assert found.check() == []
    found.close()
    store.close()
