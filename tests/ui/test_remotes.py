"""`exlchat remotes`, and a start that names a server: by the real command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.cli.main import main
from exlchat.remote import finding
from tests.remote.stub import DONE, Stub, delta, listed, serving, streamed

ROUTES = {
    "GET /v1/models": listed("one", "two"),
    "POST /v1/chat/completions": streamed(delta("Hello"), delta(reason="stop"), DONE),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[Stub]:
    with serving(ROUTES) as stub:
        yield stub


def test_a_server_is_kept_listed_shown_used_and_forgotten(
    server: Stub, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_KEY", "sekrit-2")
    assert main(["remotes", "add", "desk", server.url, "--model", "two", "--key", "env:STUB_KEY"]) == 0
    kept = home / "config" / "remotes.toml"
    assert "sekrit" not in kept.read_text()
    capsys.readouterr()
    assert main(["remotes", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "desk", "urls": [server.url], "model": "two", "key": "env:STUB_KEY"}
    ]
    assert main(["remotes", "show", "desk", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["model"], shown["level"], shown["context"]) == ("openai", "two", "messages", 8192)
    monkeypatch.setattr("sys.stdin", None)
    assert main(["ask", "--remote", "desk", "--no-save", "Hi"]) == 0
    told = capsys.readouterr()
    assert told.out == "Hello\n"
    assert server.bodies("/v1/chat/completions")[0]["model"] == "two"
    assert all(one["Authorization"] == "Bearer sekrit-2" for one in server.headers)
    assert main(["remotes", "remove", "desk"]) == 0
    assert main(["ask", "--remote", "desk", "Hi"]) == 1
    assert "there is no server called desk" in capsys.readouterr().err


def test_what_lies_at_the_usual_ports_is_found(
    server: Stub, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PORTS", (int(server.url.rpartition(":")[2]), 9))
    assert main(["remotes", "find"]) == 0
    assert capsys.readouterr().out == f"{server.url}  openai  one, two\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["remotes", "add", "a b", "localhost"], "is no name of a server"),
        (["remotes", "add", "a", "ftp://x"], "no address of a server"),
        (["remotes", "add", "a", "http://me:pw@x"], "holds a name or password"),
        (["remotes", "add", "a", "x", "--key", "sk-123456"], "must be env:NAME, file:PATH or keyring"),
        (["remotes", "remove", "a"], "there is no server called a"),
        (["ask", "--remote", "x:1", "--remote-key", "env:NOT_THERE", "Hi"], "the environment has no NOT_THERE"),
        (["ask", "--remote-level", "ids", "Hi"], "name it with --remote"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code in (1, 2)
    err = capsys.readouterr().err
    assert says in err
    assert "sk-123456" not in err
    assert "pw" not in err
    assert len(err.splitlines()) == 1


def test_a_key_that_others_can_read_is_refused(
    server: Stub, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    file = tmp_path / "key"
    file.write_text("sekrit-3\n")
    file.chmod(0o644)
    asked = ["ask", "--remote", server.url, "--remote-key", f"file:{file}", "--no-save", "Hi"]
    assert main(asked) == 1
    assert "chmod 600" in capsys.readouterr().err
    file.chmod(0o600)
    assert main(asked) == 0
    assert server.headers[-1]["Authorization"] == "Bearer sekrit-3"


def test_a_broken_file_is_named_and_left(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "config" / "remotes.toml"
    file.parent.mkdir(parents=True)
    for text, says in (
        ("[a", "not TOML"),
        ("[a]\nurl = 5\n", "needs a url"),
        ("[a]\nurl = 'x'\nk = 1\n", "unknown key k"),
    ):
        file.write_text(text)
        assert main(["remotes", "add", "b", "localhost"]) == 1
        assert says in capsys.readouterr().err
        assert file.read_text() == text
