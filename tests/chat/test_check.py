"""`check` finds what is wrong and mends it without removing a message."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from exlchat.chat.store.backup import backups
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.cli import main as cli

DAMAGES = {
    "a parent that is not there": ("UPDATE message SET parent_id = 'nobody' WHERE text = 'Q2'", "follows one"),
    "a parent elsewhere": (
        "UPDATE message SET parent_id = (SELECT id FROM message WHERE text = 'other') WHERE text = 'Q2'",
        "follows one that its conversation does not have",
    ),
    "a ring": (
        "UPDATE message SET parent_id = (SELECT id FROM message WHERE text = 'A2') WHERE text = 'Q1'",
        "follows itself, over 4 messages",
    ),
    "its own parent": ("UPDATE message SET parent_id = id WHERE text = 'A2'", "follows itself, over 1 messages"),
    "a tip that is not there": ("UPDATE conversation SET tip_id = 'nobody' WHERE title = 'Q1'", "ends nowhere"),
    "a tip elsewhere": (
        "UPDATE conversation SET tip_id = (SELECT id FROM message WHERE text = 'other') WHERE title = 'Q1'",
        "ends nowhere",
    ),
    "a deleted tip": ("UPDATE message SET deleted_at = 1 WHERE text = 'A2'", "ends nowhere"),
    "hidden in the middle": ("UPDATE message SET deleted_at = 1 WHERE text = 'A1'", "something below it is not"),
    "no conversation": ("DELETE FROM conversation WHERE title = 'Q1'", "which is not there"),
    "an answer of nobody": ("UPDATE message SET status = 'streaming' WHERE text = 'A2'", "nobody writes"),
    "an answer that has ended": (
        "INSERT INTO answer_in_progress SELECT id, 'w', NULL FROM message WHERE text = 'A2'",
        "still noted as being written",
    ),
    "a copy of nothing": ("UPDATE message SET edited_from = 'nobody' WHERE text = 'A2'", "a copy of one"),
    "an index without a message": (
        "DELETE FROM searchable WHERE message_id = (SELECT id FROM message WHERE text = 'A2')",
        "the index of the search",
    ),
    "an index of other words": ("UPDATE message SET text = 'changed' WHERE text = 'A2'", "the index of the search"),
    "a change that is nonsense": (
        "INSERT INTO change (conversation_id, what, changed_at, steps) SELECT id, 'edit', 1, '{' FROM conversation",
        "cannot be read",
    ),
    "a tag of nothing": ("INSERT INTO tag VALUES ('nobody', 'x')", "an entry in tag"),
    "half a token id": ("UPDATE message SET token_ids = x'010203' WHERE text = 'A2'", "values that are damaged"),
    "a text of bytes": ("UPDATE message SET text = x'4132' WHERE text = 'A2'", "values that are damaged"),
    "a text that is no UTF-8": (
        "UPDATE message SET text = CAST(x'ff4132' AS TEXT) WHERE text = 'A2'",
        "values that are damaged",
    ),
    "a record that is none": ("UPDATE message SET record = '[1]' WHERE text = 'A2'", "values that are damaged"),
    "a record of other things": (
        "UPDATE message SET record = json_set('{}', '$.model', 5, '$.template', 'x', '$.stats', NULL, "
        "'$.sampling', json('{}'), '$.finish_reason', 'eos') WHERE text = 'A2'",
        "values that are damaged",
    ),
    "a persona that is none": ("UPDATE message SET persona = '7' WHERE text = 'A2'", "values that are damaged"),
    "what is foreign, and none": ("UPDATE conversation SET foreign_json = '[' WHERE title = 'Q1'", "foreign_json"),
    "a title of bytes": ("UPDATE conversation SET title = x'ff51' WHERE title = 'Q1'", "title ("),
    "a title of nobody": ("UPDATE conversation SET title_by = 'me' WHERE title = 'Q1'", "title_by ('me' becomes"),
    "a pin that is none": ("UPDATE conversation SET pinned = 'x' WHERE title = 'Q1'", "pinned ('x' becomes '0'"),
    "a status that is none": ("UPDATE message SET status = 'lost' WHERE text = 'A2'", "status ('lost' becomes"),
    "a conversation without times": (
        "UPDATE conversation SET updated_at = 'noon', archived_at = 'x', deleted_at = x'00' WHERE title = 'Q1'",
        "updated_at (",
    ),
    "an id of bytes": ("UPDATE message SET id = CAST(id AS BLOB) WHERE text = 'A2'", "id ("),
    "a draft of bytes": ("UPDATE conversation SET draft = x'ff' WHERE title = 'Q1'", "draft ("),
    "a tag of bytes": ("INSERT INTO tag SELECT id, x'ff' FROM conversation WHERE title = 'Q1'", "a tag holds"),
    "a time in words": ("UPDATE message SET created_at = 'noon' WHERE text = 'A2'", "values that are damaged"),
    "an index without contents": ("DELETE FROM search_index_data", "the index of the search"),
    "an index without a part": ("DROP TABLE search_index_config", "the index of the search"),
    "no index at all": ("DROP TABLE search_index", "has no table search_index"),
    "no table of tags": ("DROP TABLE tag", "has no table tag"),
    "no trigger": ("DROP TRIGGER message_added", "has no trigger message_added"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.db"
    store = ConversationStore(path)
    ident = store.create_conversation().id
    for question, answer in (("Q1", "A1"), ("Q2", "A2")):
        asked = store.add_message(ident, "user", question)
        begun = store.begin_answer(ident, asked.id)
        store.close_answer(begun.id, answer, [1], "complete")
    other = store.create_conversation().id
    store.add_message(other, "user", "other")
    store.close()
    return path


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_mended(path: Path, name: str) -> None:
    statement, said = DAMAGES[name]
    damaged = sqlite3.connect(path)
    damaged.execute("PRAGMA ignore_check_constraints = ON")
    with damaged:
        damaged.execute(statement)
    before = {row[0] for row in damaged.execute("SELECT CAST(id AS TEXT) FROM message")}
    damaged.close()
    store = ConversationStore(path)
    problems = store.check()
    assert any(said in problem.text for problem in problems), problems
    assert not any(problem.repaired for problem in problems)
    assert store.check() == problems, "looking changes nothing"
    assert backups(path) == []
    mended = store.check(repair=True)
    assert mended
    assert all(problem.repaired for problem in mended), mended
    assert len(backups(path)) == 1
    assert store.check() == []
    assert {row[0] for row in store._db.execute("SELECT id FROM message")} == before
    for row in store.list_conversations():
        assert store.load(row.id).branch
        store.read_tree(row.id)
        assert row.title != "New conversation"
        store.add_message(row.id, "user", "tangerine")
    assert len(store.search("tangerine")) == len(store.list_conversations())
    store.close()


@pytest.mark.parametrize("name", ["a ring", "its own parent", "a parent that is not there", "a parent elsewhere"])
def test_a_damaged_tree_is_shown_and_exported_whole_before_it_is_mended(path: Path, name: str) -> None:
    store = ConversationStore(path)
    store._db.execute("PRAGMA foreign_keys = OFF")
    store._db.execute(DAMAGES[name][0])
    # Instead of a test that never ends.
    store._db.set_progress_handler(lambda: 1, 1_000_000)
    (ident,) = (row.id for row in store.list_conversations() if row.message_count == 4)
    branch = [one.text for one in store.load(ident).branch]
    assert branch[-1] == "A2"
    assert len(set(branch)) == len(branch)
    tree = store.read_tree(ident)
    assert sorted(one.text for one in tree.messages) == ["A1", "A2", "Q1", "Q2"]
    assert ConversationStore(None).write_tree(tree)
    store.close()


def test_a_row_that_is_damaged_is_named_in_one_line(path: Path) -> None:
    store = ConversationStore(path)
    store._db.execute("UPDATE message SET token_ids = 'abc' WHERE text = 'A2'")
    store._db.execute("UPDATE message SET text = CAST(x'ff' AS TEXT) WHERE text = 'other'")
    for row in store.list_conversations():
        with pytest.raises(StoreError, match="check --repair mends it"):
            store.load(row.id)
    store.close()


def test_a_record_that_is_nested_without_end_is_none(path: Path) -> None:
    store = ConversationStore(path)
    store._db.execute("UPDATE message SET record = ? WHERE text = 'A2'", ("[" * 100_000,))
    assert [one.repaired for one in store.check()] == [False]
    assert store.load(store.list_conversations()[1].id).branch[-1].record is None
    store.close()


def test_a_schema_that_is_no_text_is_damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"CREATE TABLE conversation (", b"CREATE T\xffBLE conversation ("))
    with pytest.raises(StoreError, match="is damaged"):
        ConversationStore(path)


def test_nothing_wrong_makes_no_copy(path: Path) -> None:
    store = ConversationStore(path)
    assert store.check(repair=True) == []
    assert backups(path) == []
    store.close()


def test_what_is_taken_out_is_named_and_is_in_the_copy(path: Path) -> None:
    store = ConversationStore(path)
    store._db.execute("UPDATE message SET record = '{', persona = '[]' WHERE text = 'A2'")
    (said,) = store.check(repair=True)
    assert "record (taken out), persona (taken out)" in said.text
    assert store.check() == []
    assert store.load(store.list_conversations()[1].id).branch[-1].record is None
    store.close()
    (copy,) = backups(path)
    assert sqlite3.connect(copy).execute("SELECT record FROM message WHERE text = 'A2'").fetchone() == ("{",)


@pytest.mark.parametrize("steps", [[{"do": 5}], [{"do": "set", "table": "x"}], [5], {}, [{"do": "tags", "id": []}]])
def test_a_change_that_is_nonsense_no_longer_blocks_those_before_it(path: Path, steps: object) -> None:
    store = ConversationStore(path)
    (ident,) = (row.id for row in store.list_conversations() if row.message_count == 4)
    store.rename(ident, "given")
    store._db.execute("INSERT INTO change VALUES (99, ?, 'edit', 1, 0, ?)", (ident, json.dumps(steps)))
    with pytest.raises(StoreError, match="check --repair"):
        store.undo(ident)
    assert all(problem.repaired for problem in store.check(repair=True))
    assert store.check() == []
    assert store.undo(ident) is not None
    assert store.load(ident).title == "Q1"
    store.close()


def test_a_role_that_there_is_not_is_mended_and_the_conversation_is_listed_again(path: Path) -> None:
    store = ConversationStore(path)
    store._db.execute("PRAGMA ignore_check_constraints = ON")
    store._db.execute("PRAGMA foreign_keys = OFF")
    store._db.execute("UPDATE message SET role = 'tool', text = text || ' of a tool'")
    store._db.execute("UPDATE conversation SET title = NULL, title_by = NULL")
    store._db.execute("UPDATE message SET parent_id = 'nobody' WHERE text LIKE 'A2%'")
    texts = {text for (text,) in store._db.execute("SELECT text FROM message")}
    assert store.list_conversations() == []
    found = store.check()
    assert sum("role ('tool' becomes 'user')" in one.text for one in found) == 3
    assert sum("role ('tool' becomes 'assistant')" in one.text for one in found) == 2
    assert any("follows one" in one.text for one in found), "one kind of damage hides no other"
    assert all(one.repaired for one in store.check(repair=True))
    assert store.check() == []
    assert len(store.list_conversations()) == 2
    assert {text for (text,) in store._db.execute("SELECT text FROM message")} == texts
    store.close()


def test_the_shell_finds_nothing_wrong_after_a_repair_of_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    path = path.rename(tmp_path / "data" / "conversations.db")
    damaged = sqlite3.connect(path)
    damaged.execute("PRAGMA ignore_check_constraints = ON")
    with damaged:
        for statement, _ in DAMAGES.values():
            if not statement.startswith("DROP"):
                damaged.execute(statement)
    before = {row[0] for row in damaged.execute("SELECT rowid FROM message")}
    damaged.close()
    for words in (["list"], ["check"], ["stats"]):
        assert cli.main(["sessions", *words]) in (0, 1)
    assert cli.main(["sessions", "check", "--repair"]) == 0
    assert cli.main(["sessions", "check"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert {row[0] for row in sqlite3.connect(path).execute("SELECT rowid FROM message")} == before


def test_a_damaged_file_names_its_newest_copy(path: Path) -> None:
    store = ConversationStore(path)
    store._db.execute("UPDATE message SET edited_from = 'nobody'")
    store.check(repair=True)
    store.close()
    (copy,) = backups(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged") as caught:
        ConversationStore(path).check()
    assert str(copy) in str(caught.value)


def test_a_damaged_index_of_sqlite_is_made_anew(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA writable_schema = ON")
    with database:
        # An index that says it is empty: SQLite finds rows missing from it.
        database.execute("CREATE TABLE empty (a, b, c)")
        database.execute("CREATE INDEX empty_i ON empty (a, b, c)")
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'empty_i'").fetchone()[0]
        database.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = 'message_conversation'", (page,))
        database.execute("DELETE FROM sqlite_master WHERE name IN ('empty', 'empty_i')")
    database.close()
    store = ConversationStore(path)
    assert any("message_conversation" in problem.text for problem in store.check())
    assert all(problem.repaired for problem in store.check(repair=True))
    assert store.check() == []
    assert len(store.list_conversations()) == 2
    store.close()


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.sweep(13)
def test_no_command_stumbles_over_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    path = path.rename(tmp_path / "data" / "conversations.db")
    damaged = sqlite3.connect(path)
    damaged.execute("PRAGMA ignore_check_constraints = ON")
    idents = [ident for (ident,) in damaged.execute("SELECT id FROM conversation")]
    with damaged:
        damaged.execute(DAMAGES[name][0])
    damaged.close()
    for words in (["list"], ["list", "--json"], ["search", "Q1"], ["stats"], ["export", "--all"]):
        assert cli.main(["sessions", *words]) in (0, 1)
    for command in ("show", "show --tree", "show --json", "export --format html", "undo"):
        for ident in idents:
            first, *options = command.split()
            assert cli.main(["sessions", first, ident, *options]) in (0, 1)
    assert all(line.startswith("exlchat: ") for line in capsys.readouterr().err.splitlines())
