"""A database that SQLite cannot read any more gives back what is left in it, and is itself never lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.chat.repair.check_file import check_file
from exlchat.chat.repair.salvage import collect
from exlchat.chat.repair.sqlite_pages import PageRecord
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.cli import main as cli
from tests.patience import within

PAGE = 4096
SECONDS = 5.0


def fill(path: Path) -> None:
    """Some 2 MB, with texts from a word to many pages, tags, an edit, a deletion and a branch."""
    draw = random.Random(7)
    store = ConversationStore(path)
    for number in range(40):
        ident = store.create_conversation().id
        for turn in range(6):
            length = draw.choice([3, 40, 400, 2000, 9000])
            words = f"tangerine {number}.{turn} " + "größer und länger " * (length // 18)
            asked = store.add_message(ident, "user", words)
            begun = store.begin_answer(ident, asked.id)
            store.close_answer(begun.id, f"answer {number}.{turn}", list(range(turn)), "complete")
        store.set_tags(ident, ["all", f"t{number % 3}"])
        store.edit(asked.id, f"edited {number}")
    store.delete_from(asked.id)
    store.branch_off(begun.id if number < 0 else store.load(ident).branch[1].id)
    # What is in the free pages is not to come back.
    gone = store.create_conversation().id
    store.add_message(gone, "user", "purged " * 3000)
    store._db.execute("PRAGMA foreign_keys = OFF")
    store._db.execute("DELETE FROM message WHERE conversation_id = ?", (gone,))
    store._db.execute("DELETE FROM conversation WHERE id = ?", (gone,))
    store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "conversations.db"
    fill(path)
    return path


@pytest.fixture(scope="module")
def with_wal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with what was said last in its WAL alone."""
    path = tmp_path_factory.mktemp("wal") / "conversations.db"
    fill(path)
    code = (
        "import os, sys; from pathlib import Path; from exlchat.chat.store.conversations import ConversationStore\n"
        "store = ConversationStore(Path(sys.argv[1]))\n"
        "store._db.execute('PRAGMA wal_autocheckpoint = 0')\n"
        "for number in range(60):\n"
        "    ident = store.create_conversation().id\n"
        "    for turn in range(5): store.add_message(ident, 'user', f'late {number}.{turn} ' + 'words ' * 50 * turn)\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert Path(f"{path}-wal").stat().st_size > 100 * PAGE
    return path


def copied(path: Path, folder: Path) -> Path:
    target = folder / path.name
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copy(f"{path}{suffix}", f"{target}{suffix}")
    return target


def messages(path: Path) -> dict[str, tuple[object, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(copied(path, Path(folder)))
        rows = db.execute("SELECT id, conversation_id, role, text, token_ids, deleted_at IS NULL FROM message")
        found = {row[0]: row[1:] for row in rows}
        db.close()
    return found


def overwrite(path: Path, numbers: set[int], seed: int) -> None:
    draw = random.Random(seed)
    with path.open("r+b") as file:
        for number in numbers:
            file.seek(number * PAGE)
            file.write(draw.randbytes(PAGE))


def repaired(path: Path) -> list[str]:
    with within(SECONDS):
        return [problem.text for problem in check_file(path, repair=True)]


def repaired_or_refused(path: Path) -> list[str] | str:
    try:
        return repaired(path)
    except StoreError as error:
        return str(error)


def test_all_that_is_on_other_pages_comes_back(whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path)
    before = messages(path)
    size = path.stat().st_size // PAGE
    overwrite(path, {0, size // 3}, 1)
    damaged = path.read_bytes()
    with pytest.raises(StoreError, match="check --repair"):
        ConversationStore(path)
    lines = repaired(path)
    assert check_file(path) == []
    after = messages(path)
    assert len(after) > 0.9 * len(before)
    assert set(after) <= set(before), "what was removed does not come back"
    same = sum(after[ident] == before[ident] for ident in after)
    assert len(after) - same <= 5, "one page holds the rest of at most one long text, or some rows"
    assert f"{len(after)} messages were saved" in lines[0]
    (kept,) = path.parent.glob("*.damaged-*")
    assert kept.read_bytes() == damaged
    assert str(kept) in lines[0]
    store = ConversationStore(path)
    assert len(store.search("tangerine", 1000)) > 200
    assert any(row.tags == ("all", "t1") for row in store.list_conversations())
    store.close()


def test_only_the_schema_is_lost_and_nothing_else(whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path)
    before = messages(path)
    rows = [(row.id, row.title, row.tags, row.updated_at) for row in ConversationStore(path).list_conversations()]
    overwrite(path, {0}, 1)
    line = repaired(path)[0]
    assert messages(path) == before
    assert "known to be lost are 0 messages" in line
    store = ConversationStore(path)
    assert [(row.id, row.title, row.tags, row.updated_at) for row in store.list_conversations()] == rows
    assert any(store.undo(row[0]) is not None for row in rows), "what can be undone is saved too"
    store.close()


def test_what_was_only_in_the_wal_comes_back_too(with_wal: Path, tmp_path: Path) -> None:
    path = copied(with_wal, tmp_path)
    before = messages(path)
    overwrite(path, {0, 1, 2}, 1)
    path.write_bytes(path.read_bytes()[: 5 * PAGE])
    repaired(path)
    after = messages(path)
    late = {ident for ident, row in before.items() if str(row[2]).startswith("late")}
    assert len(late) == 300
    assert late <= set(after)
    assert all(after[ident] == before[ident] for ident in late)
    assert {file.name for file in tmp_path.iterdir() if file.name.endswith("-wal")} == {
        f"{next(tmp_path.glob('*.damaged-*[0-9]')).name}-wal"
    }


def test_an_empty_file_does_not_take_its_wal_with_it(with_wal: Path, tmp_path: Path) -> None:
    path = copied(with_wal, tmp_path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="check --repair"):
        ConversationStore(path)
    repaired(path)
    assert len([row for row in messages(path).values() if str(row[2]).startswith("late")]) == 300


def test_a_text_that_was_cut_within_its_page_ends_where_the_file_does(whole: Path, tmp_path: Path) -> None:
    """At any byte of a page, of pages that hold messages: no zeros stand for what is gone."""
    before = messages(whole)
    size = whole.stat().st_size
    for number, at in enumerate(range(size // 2, size // 2 + 3 * PAGE, 731)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = copied(whole, folder)
        os.truncate(path, at)
        repaired(path)
        after = messages(path)
        assert after
        assert all(str(before[ident][2]).startswith(str(row[2])) for ident, row in after.items())


# Shrinking would take minutes, and says nothing that the example does not.
@hypothesis_settings(max_examples=12, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data(), wal=st.booleans())
def test_whatever_is_overwritten_or_cut(whole: Path, with_wal: Path, data: st.DataObject, wal: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = copied(with_wal if wal else whole, Path(folder))
        before = messages(path)
        pages = path.stat().st_size // PAGE
        seed = data.draw(st.integers(0, 1000))
        overwrite(path, data.draw(st.sets(st.integers(0, pages - 1), max_size=12)), seed)
        if data.draw(st.booleans()):
            os.truncate(path, data.draw(st.integers(0, pages * PAGE)))
        if wal and data.draw(st.booleans()):
            other = Path(f"{path}-wal")
            overwrite(other, data.draw(st.sets(st.integers(0, other.stat().st_size // PAGE - 1), max_size=3)), seed)
            os.truncate(other, data.draw(st.integers(0, other.stat().st_size)))
        damaged = path.read_bytes()
        lines = repaired_or_refused(path)
        if isinstance(lines, str):
            assert "\n" not in lines
            assert path.read_bytes() == damaged
            return
        assert check_file(path) == []
        if any("the file was damaged" in line for line in lines):
            assert any(file.name.endswith(("damaged", *"0123456789")) for file in path.parent.glob("*.damaged-*"))
        after = messages(path)
        assert set(after) <= set(before)
        for ident, row in after.items():
            # A text whose end is gone begins as it did.
            assert str(before[ident][2]).startswith(str(row[2])) or row == before[ident]


def test_a_database_that_somebody_has_open_is_left_alone(whole: Path, tmp_path: Path) -> None:
    path = copied(whole, tmp_path)
    code = (
        "import sys, sqlite3; db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('SELECT count(*) FROM message').fetchone()\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    overwrite(path, {0}, 1)
    damaged = path.read_bytes()
    with pytest.raises(StoreError, match="another program has it open"):
        check_file(path, repair=True)
    assert path.read_bytes() == damaged
    other.communicate()
    assert "were saved" in repaired(path)[0]


def test_the_shell_saves_and_says_so(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    path = copied(whole, tmp_path / "data")
    os.truncate(path, path.stat().st_size // 2)
    assert cli.main(["sessions", "check"]) == 1
    capsys.readouterr()
    assert cli.main(["sessions", "check", "--repair"]) == 0
    out = capsys.readouterr().out
    assert "mended: the file was damaged" in out
    assert ".damaged-" in out
    assert cli.main(["sessions", "check"]) == 0
    capsys.readouterr()
    assert cli.main(["sessions", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_letter_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    path.write_bytes(b"This is a letter to my aunt, and quite a long one at that. " * 40)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="nothing of it can be read"):
        check_file(path, repair=True)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_message_whose_id_was_written_over_is_not_taken_for_another_one() -> None:
    kept, damaged = ("0153e14a", "c1", None, "user", "text"), ("0153\0\0\0\0", "c1", None, "user", "text")
    rest = (1e9, "complete", None, None)
    saved = collect([PageRecord(1, (*kept, *rest), whole=True), PageRecord(2, (*damaged, *rest), whole=True)])
    assert set(saved.messages) == {"0153e14a"}
