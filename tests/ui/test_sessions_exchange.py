"""`exlchat sessions export` and `import`, with a store of a few lines and with files that are there already."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.chat.conversation import ConversationSummary
from exlchat.chat.database import StoreError
from exlchat.chat.tree import ConversationTree, TreeMessage
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.sessions_exchange import add_parsers, run


class TreesInMemory:
    """Conversations by id; a title of "full" is refused, as by a disk without room."""

    def __init__(self, *trees: ConversationTree) -> None:
        self.trees = {tree.id: tree for tree in trees}

    def list_conversations(self) -> Sequence[ConversationSummary]:
        return [ConversationSummary(str(ident), tree.title or "", 1.0, 1.0, 1) for ident, tree in self.trees.items()]

    def read_tree(self, conversation_id: str) -> ConversationTree:
        return self.trees[conversation_id]

    def write_tree(self, tree: ConversationTree) -> str:
        if tree.title == "full":
            raise StoreError("the disk is full")
        ident = f"n{len(self.trees)}"
        self.trees[ident] = replace(tree, id=ident)
        return ident


def tree(ident: str, title: str, text: str = "Hi") -> ConversationTree:
    return ConversationTree(title, 1.0, 2.0, "m", (TreeMessage("m", None, "user", text, 1.0),), id=ident)


def exlchat_sessions(store: TreesInMemory, *words: str) -> ExitCode:
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers())
    return run(parser.parse_args(words), store)


@pytest.fixture
def store() -> TreesInMemory:
    return TreesInMemory(tree("abc1", "One"), tree("abd2", "Two", "Grüße \x1b[2J"))


def test_what_was_exported_is_imported(
    store: TreesInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "all.jsonl"
    assert exlchat_sessions(store, "export", "--all", "-o", str(target)) == ExitCode.OK
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    other = TreesInMemory()
    assert exlchat_sessions(other, "import", str(target)) == ExitCode.OK
    assert [replace(found, id=None) for found in other.trees.values()] == [
        replace(kept, id=None) for kept in store.trees.values()
    ]
    shown = capsys.readouterr()
    assert shown.out == "all.jsonl (exlchat): 2 conversations, 2 messages\n"
    assert shown.err == f"exlchat: 2 conversations in {target}\n"


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("a.md", (), "# One"),
        ("a.html", (), "<!DOCTYPE html>"),
        ("a.json", (), '{\n "title": "One"'),
        ("a.txt", (), '{"exlchat":"conversation"'),
        ("a.txt", ("--format", "md"), "# One"),
    ],
)
def test_the_format_is_told_or_the_files_ending(
    store: TreesInMemory, tmp_path: Path, name: str, options: tuple[str, ...], begins: str
) -> None:
    assert exlchat_sessions(store, "export", "abc", *options, "-o", str(tmp_path / name)) == ExitCode.OK
    assert (tmp_path / name).read_text().startswith(begins)


def test_standard_output_gets_the_text_as_it_is(
    store: TreesInMemory, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert exlchat_sessions(store, "export", "abd2", "--format", "openai") == ExitCode.OK
    assert json.loads(capfdbinary.readouterr().out)["messages"] == [{"role": "user", "content": "Grüße \x1b[2J"}]


def test_a_terminal_gets_no_control_characters(
    store: TreesInMemory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert exlchat_sessions(store, "export", "abd2", "--format", "md") == ExitCode.OK
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("there", ["file", "link", "folder"])
def test_nothing_is_overwritten(
    store: TreesInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    target = tmp_path / "a.md"
    if there == "file":
        target.write_text("mine")
    elif there == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
    assert exlchat_sessions(store, "export", "--all", "-o", str(target)) == ExitCode.ERROR
    assert capsys.readouterr().err.splitlines() == [
        f"exlchat: {target} is there already; choose another name, or replace it with --force"
    ]
    assert os.listdir(tmp_path) == ["a.md"]
    if there == "file":
        assert target.read_text() == "mine"
        assert exlchat_sessions(store, "export", "--all", "--force", "-o", str(target)) == ExitCode.OK
        assert target.read_text().startswith("# One")


def test_a_folder_that_cannot_be_written_leaves_nothing(
    store: TreesInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert exlchat_sessions(store, "export", "--all", "-o", str(tmp_path / "a.md")) == ExitCode.ERROR
    assert "no space left" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name the conversations to export by their ids, or all of them with --all"),
        (("abc", "--all"), "name the conversations to export by their ids, or all of them with --all"),
        (("x",), "there is no conversation 'x'; exlchat sessions list shows their ids"),
        (("",), "there is no conversation ''; exlchat sessions list shows their ids"),
        (("ab",), "'ab' is the beginning of 2 ids; give more of it"),
    ],
)
def test_mistakes_are_a_line_each(
    store: TreesInMemory, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    assert exlchat_sessions(store, "export", *words) == ExitCode.ERROR
    assert capsys.readouterr().err.splitlines() == [f"exlchat: {line}"]


def test_one_bad_file_does_not_stop_the_others(
    store: TreesInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad\x1b.json").write_text("{")
    messages = [{"role": "user", "content": "Hi"}]
    talks = [
        {"title": "full", "messages": messages},
        {"title": "T", "messages": messages},
        {"messages": []},
    ]
    (tmp_path / "good.json").write_text(json.dumps(talks))
    names = [str(tmp_path / name) for name in ("bad\x1b.json", "good.json", "none.json")]
    assert exlchat_sessions(store, "import", *names) == ExitCode.ERROR
    shown = capsys.readouterr()
    assert shown.out == "good.json (OpenAI messages): 1 conversation, 1 message; 2 could not be imported\n"
    assert "\x1b" not in shown.err
    assert [line.rpartition("/")[2] for line in shown.err.splitlines()][1:] == [
        "exlchat: good.json: conversation 3: left out: it has no messages",
        "exlchat: good.json: full: the disk is full",
        "none.json cannot be read: there is no such file",
    ]
    assert [kept.title for kept in store.trees.values()] == ["One", "Two", "T"]


def test_an_answer_that_was_being_written_is_cut_short(store: TreesInMemory, tmp_path: Path) -> None:
    messages = (
        TreeMessage("m", None, "user", "Hi", 1.0),
        TreeMessage("a", "m", "assistant", "Ye", 2.0, status="streaming"),
    )
    store.trees = {"s": ConversationTree("S", 1.0, 2.0, "a", messages, id="s")}
    exlchat_sessions(store, "export", "s", "-o", str(tmp_path / "a.jsonl"))
    other = TreesInMemory()
    exlchat_sessions(other, "import", str(tmp_path / "a.jsonl"))
    assert [message.status for message in other.trees["n0"].messages] == ["complete", "partial"]
