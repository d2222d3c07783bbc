"""`exlchat sessions` from the shell's side: what is printed, exit codes, and one line for every mistake."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.model import AnswerRecord
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from exlchat.cli.doctor.facts import try_database
from exlchat.llm.sampling import SamplingSettings


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    path = tmp_path / "data" / "conversations.db"
    path.parent.mkdir()
    store = ConversationStore(path)
    for question, answer in (("How are cats?", "Soft."), ("How are\x1b[31m dogs?", "Loud.")):
        ident = store.create_conversation().id
        asked = store.add_message(ident, "user", question)
        begun = store.begin_answer(ident, asked.id)
        store.close_answer(begun.id, answer, [1], "complete")
    store.close()
    return path


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> str:
        assert cli.main(["sessions", *words]) == 0
        return self._capsys.readouterr().out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def wrong(self, *words: str) -> str:
        assert cli.main(["sessions", *words]) == 1
        captured = self._capsys.readouterr()
        assert captured.err.count("\n") == 1
        return captured.err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_the_list_is_newest_first_and_safe_to_print(shell: Shell) -> None:
    dogs, cats = shell("list").splitlines()
    assert "How are [31m dogs?" in dogs
    assert "How are cats?" in cats
    assert [row["title"] for row in shell.json("list")] == ["How are [31m dogs?", "How are cats?"]


def test_a_conversation_is_shown_with_ids_to_go_on_with(shell: Shell) -> None:
    text = shell("show", "last")
    assert "\x1b" not in text
    assert text.splitlines()[1].startswith("How are")
    shown = shell.json("show", "last")
    assert [one["role"] for one in shown["messages"]] == ["user", "assistant"]
    assert shown["messages"][0]["id"][:8] in text


def test_who_of_a_group_spoke_is_named(shell: Shell, database: Path) -> None:
    with closing(ConversationStore(database)) as store:
        ident = store.create_conversation().id
        asked = store.add_message(ident, "user", "How is it, Ben?")
        begun = store.begin_answer(ident, asked.id, speaker="\x1b[2JBen\n")
        store.close_answer(begun.id, "Cold.", [1], "complete")
    assert f"--- {begun.id[:8]} · assistant [2JBen · " in shell("show", ident)
    assert "assistant [2JBen: Cold." in shell("show", ident, "--tree")


def test_undoing_a_branch_says_that_what_was_written_in_it_stays(shell: Shell, database: Path) -> None:
    answer = shell.json("show", "last")["messages"][-1]["id"]
    old = shell.json("list")[0]["id"]
    new = shell("branch", answer).strip()
    store = ConversationStore(database)
    store.add_message(new, "user", "And birds?")
    store.close()
    assert shell("undo", old) == f"undone: branch; conversation {new[:8]} stays: something was written in it since\n"
    assert new in [row["id"] for row in shell.json("list")]


def test_what_was_edited_is_undone_and_done_again(shell: Shell) -> None:
    question = shell.json("show", "last")["messages"][0]["id"]
    new = shell("edit", question[:12], "How are birds?").strip()
    assert [one["id"] for one in shell.json("show", "last")["messages"]] == [new]
    assert "2 of 2" in shell("show", "last")
    assert shell("undo", "last") == "undone: edit\n"
    assert shell.json("show", "last")["messages"][0]["id"] == question
    assert shell("undo", "last", "--redo") == "done again: edit\n"
    shell("choose", question)
    assert len(shell.json("show", "last")["messages"]) == 2
    assert len(shell("show", "last", "--tree").splitlines()) == 3
    shell("cut", new)
    assert len(shell("show", "last", "--tree").splitlines()) == 2
    assert "nothing to do again" in shell.wrong("undo", "last", "--redo")


def test_an_answer_that_was_gone_on_from_is_no_alternative(shell: Shell, database: Path) -> None:
    store = ConversationStore(database)
    ident = store.list_conversations()[0].id
    question, _ = store.load(ident).branch
    store.set_tip(ident, question.id)
    record = AnswerRecord("model", "template", SamplingSettings(), None, "max_new_tokens")
    cut = store.begin_answer(ident, question.id, record=record)
    store.close_answer(cut.id, "Loud", [1], "partial")
    whole = store.begin_answer(ident, question.id, text="Loud", record=record, edited_from=cut.id)
    store.close_answer(whole.id, "Loud and clear.", [1, 2], "complete")
    store.close()
    assert "2 of 2" in shell("show", ident)
    assert [(one["place"], one["of"]) for one in shell.json("show", ident)["messages"]] == [(1, 1), (2, 2)]


def test_a_search_is_narrowed_by_days(shell: Shell) -> None:
    assert len(shell("search", "how", "after:2000").splitlines()) == 4
    assert "dogs" in shell("search", "dogs", "after:2000-12")
    assert shell("search", "dogs", "before:2000-12-31") == "Nothing was found.\n"
    assert "no day such as 2026-03-14" in shell.wrong("search", "dogs", "before:soon")


def test_the_text_of_an_edit_may_come_from_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    question = shell.json("show", "last")["messages"][0]["id"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("über\nzwei".encode())))
    shell("edit", question, "--carry")
    assert [one["text"] for one in shell.json("show", "last")["messages"]] == ["über\nzwei", "Loud."]


def test_a_branch_is_a_conversation_of_its_own(shell: Shell) -> None:
    question = shell.json("show", "last")["messages"][0]["id"]
    ident = shell("branch", question).strip()
    assert [one["text"] for one in shell.json("show", ident)["messages"]] == ["How are\x1b[31m dogs?"]


def test_search_finds_and_marks(shell: Shell) -> None:
    assert "Soft." in shell("search", "sof")
    (hit,) = shell.json("search", "soft")
    assert hit["snippet"][slice(*hit["marks"][0])] == "Soft"
    assert shell("search", '"') == "Nothing was found.\n"


def test_conversations_are_arranged(shell: Shell) -> None:
    cats = shell.json("list")[1]["id"]
    shell("tag", cats, "animal", "soft")
    shell("tag", cats, "soft", "--remove")
    shell("pin", cats)
    shell("rename", cats, "Cats")
    assert "* " in shell("list").splitlines()[0]
    assert [row["title"] for row in shell.json("list", "--tag", "animal")] == ["Cats"]
    shell("archive", cats)
    assert [row["id"] for row in shell.json("list", "--archived")] == [cats]
    shell("archive", cats, "--off")
    shell("rm", cats)
    assert [row["id"] for row in shell.json("list", "--deleted")] == [cats]
    shell("restore", cats)
    assert len(shell.json("list")) == 2
    assert shell.json("stats")["messages"] == 4


def test_last_is_the_one_put_away_last_where_one_is_taken_back(shell: Shell) -> None:
    dogs, cats = (row["id"] for row in shell.json("list"))
    shell("archive", dogs)
    shell("archive", cats)
    assert "there is no conversation yet" in shell.wrong("archive", "last")
    shell("archive", "last", "--off")
    assert [row["id"] for row in shell.json("list")] == [cats]
    shell("archive", "last", "--off")
    assert "there is no archived conversation" in shell.wrong("archive", "last", "--off")
    assert "there is no deleted conversation" in shell.wrong("restore", "last")
    shell("rm", cats)
    shell("rm", "last")
    assert shell.json("list") == []
    shell("restore", "last")
    assert [row["id"] for row in shell.json("list")] == [dogs]


def test_a_message_is_pinned_for_the_model(shell: Shell) -> None:
    question, answer = (one["id"] for one in shell.json("show", "last")["messages"])
    shell("pin-message", question[:10])
    assert [one["pinned"] for one in shell.json("show", "last")["messages"]] == [True, False]
    assert "pinned" in shell("show", "last").splitlines()[0]
    assert not any(row["pinned"] for row in shell.json("list"))
    assert shell("undo", "last") == "undone: pin\n"
    shell("pin-message", answer)
    shell("pin-message", answer, "--off")
    assert not any(one["pinned"] for one in shell.json("show", "last")["messages"])


def test_a_title_that_is_cut_is_said_to_be(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sessions", "rename", "last", "long " * 200_000]) == 0
    assert capsys.readouterr().err == "exlchat: the title is cut: one is a line of 60 characters at most\n"
    assert len(shell.json("list")[0]["title"]) <= 60
    shell("rename", "last", "x" * 60)
    assert cli.main(["sessions", "rename", "last", "x" * 60]) == 0
    assert capsys.readouterr().err == ""


def test_a_system_prompt_is_not_pinned(shell: Shell, database: Path) -> None:
    with closing(ConversationStore(database)) as store:
        told = store.add_message(store.list_conversations()[0].id, "system", "Be brief.")
    assert "a system prompt is seen as long as it holds" in shell.wrong("pin-message", told.id)


def test_purge_says_what_it_would_remove_and_removes_it_for_good(
    shell: Shell, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dogs, cats = (row["id"] for row in shell.json("list"))
    answer = shell.json("show", dogs)["messages"][1]["id"]
    shell("rename", cats, "Cats")
    shell("rm", cats)
    shell("cut", answer)
    assert cli.main(["sessions", "purge"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "1 conversation and 1 message of others would be removed" in told.err
    assert shell("purge", "--yes") == "removed for good: 1 conversation and 1 message of others\n"
    assert shell.json("list", "--deleted") == []
    assert "there is no conversation" in shell.wrong("show", cats)
    assert "there is no message" in shell.wrong("choose", answer)
    assert "nothing to undo" in shell.wrong("undo", dogs)
    assert [one["text"] for one in shell.json("show", dogs)["messages"]] == ["How are\x1b[31m dogs?"]
    assert shell("check") == "Nothing is wrong.\n"
    with closing(sqlite3.connect(database)) as held:
        assert held.execute("SELECT count(*) FROM message WHERE text IN ('Soft.', 'Loud.')").fetchone() == (0,)
    assert shell("purge", "--yes") == "removed for good: 0 conversations and 0 messages of others\n"


def test_purge_leaves_a_deleted_conversation_in_which_an_answer_is_being_written(shell: Shell, database: Path) -> None:
    with closing(ConversationStore(database)) as store:
        ident = store.create_conversation().id
        begun = store.begin_answer(ident, store.add_message(ident, "user", "Slowly").id)
        store.delete(ident)
        assert store.purge_deleted().conversations == 0
        store.close_answer(begun.id, "Done.", [1], "complete")
        assert store.purge_deleted().conversations == 1


def test_a_message_is_emptied_by_an_empty_text_only(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = shell.json("show", "last")["messages"][1]["id"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"not this")))
    shell("edit", answer, "")
    assert shell.json("show", "last")["messages"][1]["text"] == ""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert cli.main(["sessions", "edit", answer]) == 2
    assert "there is no text on standard input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("piped", "kept"), [(b"a\n\n\n", "a\n\n"), (b"a", "a"), (b"a\n", "a"), (b"\n", ""), (b"  a \n", "  a ")]
)
def test_a_text_from_standard_input_loses_one_newline_at_its_end(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, piped: bytes, kept: str
) -> None:
    answer = shell.json("show", "last")["messages"][1]["id"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
    shell("edit", answer)
    assert shell.json("show", "last")["messages"][1]["text"] == kept


@pytest.mark.parametrize("words", [["show", ""], ["rm", ""], ["edit", "", "x"], ["reproduce", ""]])
def test_an_empty_id_has_words_of_its_own(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sessions", *words])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert "the id is empty; exlchat sessions list and show print ids" in line
    assert "stop" not in line
    assert line.count("\n") == 1


def test_check_mends_and_its_exit_code_says_whether_all_is_well(
    shell: Shell, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("check") == "Nothing is wrong.\n"
    with sqlite3.connect(database) as damaged:
        damaged.execute("UPDATE message SET parent_id = id WHERE text = 'Soft.'")
    damaged.close()
    assert cli.main(["sessions", "check"]) == 1
    assert "follows itself" in capsys.readouterr().out
    assert shell("check", "--repair").startswith("mended: ")
    assert shell("check") == "Nothing is wrong.\n"
    assert "backup: " in shell("stats")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nobody"], "there is no conversation 'nobody'"),
        (["edit", "nobody", "x"], "there is no message 'nobody'"),
        (["rm", "last", "nobody"], "there is no conversation 'nobody'"),
        (["choose", "%"], "there is no message '%'"),
    ],
)
def test_a_wrong_id_is_one_line_and_changes_nothing(shell: Shell, words: list[str], said: str) -> None:
    assert said in shell.wrong(*words)
    assert len(shell.json("list")) == 2


def test_an_id_that_is_not_clear_is_said(shell: Shell, database: Path) -> None:
    with sqlite3.connect(database) as changed:
        changed.execute("PRAGMA foreign_keys = OFF")
        changed.execute("INSERT INTO conversation (id, created_at, updated_at) VALUES ('zz1', 1, 1), ('zz2', 1, 1)")
    changed.close()
    assert "several ids of conversations begin with 'zz'" in shell.wrong("show", "zz")


def test_stats_list_and_doctor_count_the_same(shell: Shell, database: Path) -> None:
    dogs, cats = (row["id"] for row in shell.json("list"))
    shell("archive", dogs)
    with closing(ConversationStore(database)) as store:
        opened = store.create_conversation().id
        store.add_message(opened, "system", "Only opened.")
    shell("rm", cats)
    counts = shell.json("stats")
    for name, options in (("conversations", ()), ("archived", ["--archived"]), ("deleted", ["--deleted"])):
        assert counts[name] == len(shell.json("list", *options))
    assert counts["messages"] == sum(row["message_count"] for row in shell.json("list", "--archived"))
    assert try_database(database).text == f"{counts['conversations']} in {database}"
