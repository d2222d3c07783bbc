"""`exlchat remotes`: servers by name, where their keys are, and what runs on this machine."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from exlchat.app.library.remotes import file, remote_called
from exlchat.cli.main import main
from exlchat.remote import finding
from exlchat.remote.address import RemoteError
from tests.remote.peer import free_port
from tests.remote.stub import DONE, delta, listed, serving, streamed, told

KEY = "sk-not-for-anybodys-eyes"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["remotes", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capfd.readouterr()
    return code, out, err


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    pipe = SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", pipe)


def test_a_name_is_kept_and_stands_for_all_that_was_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "list")[0] == 0
    added = ("add", "box", "http://127.0.0.1:8080/v1", "-m", "llama", "--level", "text", "--context", "4096")
    assert run(capfd, *added) == (0, "", "")
    assert run(capfd, "add", "pair", "http://127.0.0.1:1", "http://127.0.0.1:2", "--key", "env:BOX_KEY")[0] == 0
    code, out, err = run(capfd, "list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "box   http://127.0.0.1:8080, llama, level text, context 4,096",
        "pair  http://127.0.0.1:1 http://127.0.0.1:2, key in env:BOX_KEY",
    ]
    box = remote_called("box")
    assert (box.address.port, box.model, box.level, box.context) == (8080, "llama", "text", 4096)
    assert remote_called("box", model="other", level="messages").model == "other"
    assert json.loads(run(capfd, "list", "--json")[1])[1]["urls"] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert stat.S_IMODE(file().stat().st_mode) == 0o600


def test_a_name_is_replaced_only_when_that_is_meant(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "add", "box", "http://127.0.0.1:1")
    code, _, err = run(capfd, "add", "box", "http://127.0.0.1:2")
    assert code == 1
    assert "--force" in err
    assert remote_called("box").address.port == 1
    assert run(capfd, "add", "box", "http://127.0.0.1:2", "--force")[0] == 0
    assert remote_called("box").address.port == 2
    assert run(capfd, "remove", "box")[0] == 0
    with pytest.raises(RemoteError, match="there is no server called box"):
        remote_called("box")


def test_comments_of_the_file_stay(capfd: pytest.CaptureFixture[str]) -> None:
    run(capfd, "add", "box", "http://127.0.0.1:1")
    file().write_text(f"# of the office\n{file().read_text()}")
    run(capfd, "add", "other", "http://127.0.0.1:2")
    assert file().read_text().startswith("# of the office\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "no name", "http://a"), "is no name of a server"),
        (("add", "box", "ftp://a"), "no address of a server"),
        (("add", "box", f"http://me:{KEY}@a"), "holds a name or password"),
        (("add", "box", "http://a", "--key", KEY), "the key itself is not typed"),
        (("remove", "box"), "there is no server called box"),
        (("key", "box"), "there is no server called box"),
        (("show", "box"), "there is no server called box"),
        (("show", "h\x1b[2Jx"), "there is no server called"),
        (("add", "box", *["http://a"] * 33), "at most 32"),
    ],
)
def test_what_cannot_be_is_one_line_without_the_key(
    arguments: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert says in err
    assert KEY not in err
    assert "\x1b" not in err
    assert not file().exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[box", "not TOML"),
        ("box = 5", "needs a url"),
        ("[box]\nurl = [1]", "needs a url"),
        ("[box]\nurl = []", "has 0 addresses"),
        ('[box]\nurl = "http://a"\npassword = "x"', "unknown key password"),
        ('[box]\nurl = "http://a"\ncontext = "many"', "must be a whole number"),
        ('[box]\nurl = "http://a"\nlevel = "best"', "it is ids, text, messages"),
        ('["a b"]\nurl = "http://a"', "is no name"),
    ],
)
def test_a_broken_list_is_named_and_never_overwritten(
    content: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file().parent.mkdir(parents=True)
    file().write_text(content)
    for arguments in (("list",), ("add", "new", "http://a"), ("show", "new")):
        code, _, err = run(capfd, *arguments)
        assert (code, err.count("\n")) == (1, 1)
        assert str(file()) in err
        assert says in err
    assert file().read_text() == content


def test_a_key_is_piped_into_a_file_for_its_owner_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capfd, "add", "box", "http://127.0.0.1:1")
    typed(monkeypatch, f"{KEY}\n".encode())
    code, out, err = run(capfd, "key", "box")
    kept = Path(out.strip())
    assert (code, err) == (0, "")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert remote_called("box").key == KEY
    assert KEY not in repr(remote_called("box"))
    assert KEY not in file().read_text()
    assert KEY not in run(capfd, "list", "--json")[1]
    kept.chmod(0o644)
    with pytest.raises(RemoteError, match="others can read this key"):
        remote_called("box")
    typed(monkeypatch, b"another-key")
    run(capfd, "key", "box")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert remote_called("box").key == "another-key"
    run(capfd, "remove", "box")
    assert not kept.exists()


@pytest.mark.parametrize("text", [b"", b"  \n", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_what_is_no_key_is_refused(
    text: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capfd, "add", "box", "http://127.0.0.1:1")
    typed(monkeypatch, text)
    code, out, err = run(capfd, "key", "box")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert remote_called("box").key == ""


def test_a_key_from_the_environment_goes_to_the_server_and_nowhere_else(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = {
        "GET /v1/models": listed("m"),
        "POST /v1/chat/completions": streamed(delta("Hi there"), delta("", "stop"), DONE),
    }
    monkeypatch.setenv("BOX_KEY", KEY)
    with serving(routes) as stub:
        run(capfd, "add", "box", stub.url, "--key", "env:BOX_KEY")
        monkeypatch.setattr(sys, "stdin", None)
        assert main(["ask", "--remote", "box", "Hello"]) == 0
        assert "Hi there" in capfd.readouterr().out
        assert {head.get("Authorization") for head in stub.headers} == {f"Bearer {KEY}"}
    main(["sessions", "export", "--format", "jsonl"])
    main(["doctor"])
    out, err = capfd.readouterr()
    assert KEY not in out + err
    written = [path for folder, _, names in os.walk(home) for path in (Path(folder) / name for name in names)]
    assert written
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_find_tells_what_runs_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving({"GET /v1/models": listed("m", owner="vllm")}) as vllm,
        serving({"GET /v1/models": told({"error": "key"}, status=401)}) as locked,
        serving({"GET /v1/models": told([1, 2, 3])}) as other,
    ):
        urls = [stub.url for stub in (vllm, locked, other)]
        ports = [int(url.rpartition(":")[2]) for url in urls]
        monkeypatch.setattr(finding, "PORTS", (*ports, free_port()))
        code, out, err = run(capfd, "find")
        assert (code, err) == (0, "")
        assert out.splitlines() == [f"{urls[0]}  vllm  m", f"{urls[1]}  needs a key"]
    monkeypatch.setattr(finding, "PORTS", (free_port(),))
    code, out, err = run(capfd, "find")
    assert (code, out) == (1, "")
    assert "no server answers" in err


def test_show_says_what_a_server_can_do(capfd: pytest.CaptureFixture[str]) -> None:
    with serving({"GET /v1/models": listed("m\x1b[2J", owner="vllm", max_model_len=4096)}) as stub:
        code, out, err = run(capfd, "show", stub.url)
        assert (code, err) == (0, "")
        told_ = dict(row.split(": ", 1) for row in out.splitlines()[:7])
        assert "\x1b" not in out
        assert (told_["kind"], told_["level"], told_["context"]) == ("vllm", "messages", "4,096")
        assert "min_p" in told_["sampling"]
        assert "dry_multiplier" not in told_["sampling"]
        assert "  this server (vllm) does not lean away from a negative prompt; load a model here" in out.splitlines()
        told_ = json.loads(run(capfd, "show", stub.url, "--json")[1])
        assert told_["context"] == 4096
        # In the words in which the app greys it.
        lacks = told_["not with this server"]
        assert "load a model here" in lacks["heal"]
        assert {"banned", "scores"} < set(lacks)
        assert not {"dry_multiplier", "regex"} & set(lacks)
