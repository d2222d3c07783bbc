"""`exlchat sessions export` and `import`, with files that are there already and files that are damaged."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from exlchat.chat.exchange.jsonl import conversations
from exlchat.chat.exchange.limits import Problems
from exlchat.chat.exchange.parse import parse
from exlchat.chat.exchange.writing import written
from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.cli.main import main
from exlchat.cli.sessions.command import build_parser as sessions_parser
from exlchat.cli.sessions.exchange import run_exchange
from exlchat.ui.terminal.exit_codes import ExitCode
from tests.chat.exchange.trees import trees


def tree(ident: str, title: str, text: str = "Hi", **more: Any) -> ConversationTree:
    messages = (Message(f"{ident} m", None, "user", text, 1.0, foreign={"name": "Ada"}),)
    return ConversationTree(title, 1.0, 2.0, messages[-1].id, messages, id=ident, **more)


def exlchat_sessions(store: ConversationStore, *words: str) -> ExitCode:
    return run_exchange(store, sessions_parser().parse_args(words))


def kept(store: ConversationStore) -> list[ConversationTree]:
    rows = (*store.list_conversations(), *store.list_conversations("archived"))
    return sorted((store.read_tree(row.id) for row in rows), key=lambda one: one.title or "")


@pytest.fixture
def empty() -> Iterator[ConversationStore]:
    with closing(ConversationStore(None)) as store:
        yield store


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConversationStore]:
    with closing(ConversationStore(tmp_path_factory.mktemp("data") / "conversations.db")) as store:
        store.write_tree(tree("abc1", "One", tags=("a", "b"), pinned=True))
        store.write_tree(tree("abd2", "Two", "Grüße \x1b[2J", archived=True, foreign={"source": "exui"}))
        yield store


def test_what_was_exported_is_imported(
    store: ConversationStore, empty: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "all.jsonl"
    assert exlchat_sessions(store, "export", "--all", "-o", str(target)) == ExitCode.OK
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert exlchat_sessions(empty, "import", str(target)) == ExitCode.OK
    assert kept(empty) == kept(store)
    assert [one.title for one in kept(store)] == ["One", "Two"]
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
    store: ConversationStore, tmp_path: Path, name: str, options: tuple[str, ...], begins: str
) -> None:
    assert exlchat_sessions(store, "export", "abc", *options, "-o", str(tmp_path / name)) == ExitCode.OK
    assert (tmp_path / name).read_text().startswith(begins)


def test_standard_output_gets_the_text_as_it_is(
    store: ConversationStore, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert exlchat_sessions(store, "export", "abd2", "--format", "openai") == ExitCode.OK
    assert json.loads(capfdbinary.readouterr().out)["messages"] == [{"role": "user", "content": "Grüße \x1b[2J"}]


def test_a_terminal_gets_no_control_characters(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert exlchat_sessions(store, "export", "abd2", "--format", "md") == ExitCode.OK
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("there", ["file", "link", "folder"])
def test_nothing_is_overwritten(
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
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
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    ],
)
def test_mistakes_are_a_line_each(
    store: ConversationStore, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    assert exlchat_sessions(store, "export", *words) == ExitCode.ERROR
    assert capsys.readouterr().err.splitlines() == [f"exlchat: {line}"]


def test_one_bad_file_does_not_stop_the_others(
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_tree(whole: ConversationTree) -> str:
        if whole.title == "full":
            raise StoreError("the disk is full")
        return ConversationStore.write_tree(store, whole)

    monkeypatch.setattr(store, "write_tree", write_tree)
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
        "none.json: there is no such file",
    ]
    assert [one.title for one in kept(store)] == ["One", "T", "Two"]


SILLY = (
    {"user_name": "Ada", "character_name": "Owl", "create_date": "2024-05-01@10h00m00s"},
    {"name": "Ada", "is_user": True, "mes": "Hello"},
    {"name": "Owl", "is_user": False, "mes": "Hoot"},
)


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(map(json.dumps, SILLY))[:-9],
        json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "wizard", "content": "Abra"}]}),
    ],
    ids=["cut in its last line", "a role of nobody"],
)
def test_what_was_left_out_of_a_conversation_is_in_the_exit_code(
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "a.json").write_text(content)
    assert exlchat_sessions(store, "import", str(tmp_path / "a.json")) == ExitCode.ERROR
    shown = capsys.readouterr()
    assert "1 message or lines left out" in shown.out
    assert "left out" in shown.err
    assert len(kept(store)) == 3, "the rest is there"


def test_what_was_only_repaired_is_not(
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_bytes('[{"role": "user", "content": "Gr\xfc\xdfe"}]'.encode("latin-1"))
    assert exlchat_sessions(store, "import", str(tmp_path / "a.json")) == ExitCode.OK
    assert "read as Latin-1" in capsys.readouterr().err


def test_importing_twice_makes_a_second_conversation(
    store: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.jsonl"
    exlchat_sessions(store, "export", "last", "-o", str(target))
    assert exlchat_sessions(store, "import", str(target)) == ExitCode.OK
    first, second, _ = kept(store)
    assert (first.title, first.messages[0].text) == (second.title, second.messages[0].text) == ("One", "Hi")
    assert first.id != second.id


def test_a_title_that_an_import_cuts_is_said_to_be(
    empty: ConversationStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    said = {"messages": [{"role": "user", "content": "Hi"}]}
    file.write_text(json.dumps([{**said, "title": "x" * 1_000_000}, {**said, "title": "y" * 200}]))
    assert exlchat_sessions(empty, "import", str(file)) == ExitCode.OK
    assert sorted(len(one.title or "") for one in kept(empty)) == [200, 200]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"exlchat: a.json: {'x' * 59}…: its title is cut to 200 characters"


@given(trees())
def test_a_tree_goes_through_the_store_and_a_file(whole: ConversationTree) -> None:
    """What the store has made of a tree is what comes back from a file of it."""
    with closing(ConversationStore(None)) as first, closing(ConversationStore(None)) as second:
        stored = first.read_tree(first.write_tree(whole))
        (again,) = conversations(parse(written([stored], "jsonl"), Problems()), Problems())
        assert second.read_tree(second.write_tree(again)) == stored


def test_the_program_exports_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    (tmp_path / "a.json").write_text(
        json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}])
    )
    assert main(["sessions", "import", str(tmp_path / "a.json")]) == 0
    assert main(["sessions", "export", "--all", "--format", "md"]) == 0
    assert "## You\n\nHi\n\n## Assistant\n\nYo\n" in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["sessions", "export", "--format", "pdf", "x"])
    assert ended.value.code == ExitCode.USAGE
