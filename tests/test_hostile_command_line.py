"""What strangers wrote, through every command of the command line: it shows, and neither steers, hides nor forges."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.cli import main as cli
from exlchat.cli.config import build_parser as config_parser
from exlchat.cli.personas import build_parser as personas_parser
from exlchat.cli.presets import build_parser as presets_parser
from exlchat.cli.remotes import build_parser as remotes_parser
from exlchat.cli.sessions.command import build_parser as sessions_parser
from exlchat.cli.templates.command import build_parser as template_parser
from exlchat.cli.themes.command import build_parser as themes_parser
from tests.forked_cli import ForkedCli, Run
from tests.hostile import HIDDEN, HOSTILE, furnish
from tests.ui.library.fake_hub import FakeHub, serving

ENDS = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")
FORGED = "exlchat: FORGED"
LINE = f"x\n{FORGED}\r{FORGED}\x1b[2J\x9b7m\u202e{''.join(f'{end}{FORGED}' for end in ENDS)}{HOSTILE}"
"""For what is shown in one line."""
NAME = "h\x1b[2J\x9b7m\u202e\nexlchat: FORGED\rexlchat: FORGED\x85\udcff"
"""What a file can be called on Linux, where only "/" and NUL are not allowed."""
GUIDE = {file.name: file.read_bytes() for file in paths.bundled_model().iterdir() if file.is_file()}
_SHORT = ["--max-tokens", "2", "--device", "cpu"]

PARSERS = {
    "config": config_parser,
    "personas": personas_parser,
    "presets": presets_parser,
    "remotes": remotes_parser,
    "sessions": sessions_parser,
    "template": template_parser,
    "themes": themes_parser,
}
"""Commands that are several, with all that they have."""
COMMANDS: list[list[str]] = [
    ["doctor"],
    ["completions", "bash"],
    ["completions", "--of", "models"],
    ["completions", "--of", "personas"],
    ["completions", NAME],
    ["build-ext", "--nvcc", NAME, "--arch", "8.9"],
    ["bench", NAME],
    ["bench", "guide", "--json", f"{NAME}/{NAME}", "--quick", "--contexts", "16", "--runs", "1"],
    ["convert", NAME, f"out/{NAME}"],
    ["convert", "broken", NAME, "--text", NAME, "--work", NAME],
    ["evaluate", NAME, "--reference", NAME],
    ["models"],
    ["models", "--json"],
    ["models", "--folder", NAME],
    ["pull", NAME],
    ["pull", "org/branches"],
    ["pull", "org/evil", "--include", NAME],
    ["pull", "org/evil"],
    ["ask", "-m", f"models/{NAME}", LINE, *_SHORT],
    ["ask", "-m", f"models/{NAME}", "--jsonl", f"hello {LINE}", *_SHORT],
    ["ask", "-m", f"models/{NAME}", "hello", "--begin", HOSTILE, "--answers", "2", *_SHORT],
    ["ask", "-m", "broken", "hello"],
    ["ask", "-m", NAME, "hello"],
    ["ask", "-c", NAME, "hello"],
    ["ask", "hello", "--persona", NAME],
    ["ask", "hello", "--template", NAME],
    ["ask", "hello", "--schema", NAME],
    ["ask", "hello", "--grammar", LINE],
    ["ask", "hello", "--sample", NAME],
    ["ask", "hello", f"--{NAME}"],
    ["run", NAME, "-o", "answers.jsonl"],
    ["run", f"in/{NAME}.jsonl", "-o", f"out/{NAME}", *_SHORT],
    ["run", "hostile.jsonl", "-o", "answers.jsonl", "-m", "guide", *_SHORT],
    ["run", "strange.jsonl", "-o", "answers.jsonl", "-m", "guide", *_SHORT],
    ["remotes", "list"],
    ["remotes", "list", "--json"],
    ["remotes", "show", NAME],
    ["remotes", "show", "stranger"],
    ["remotes", "find", "--json"],
    ["remotes", "key", NAME],
    ["remotes", "add", "box", "localhost", LINE, "--model", LINE],
    ["remotes", "add", NAME, "localhost"],
    ["remotes", "add", "one", LINE],
    ["remotes", "add", "one", "localhost", "--key", LINE],
    ["remotes", "remove", NAME],
    ["ask", "--remote", NAME, "hello"],
    ["ask", "--remote", f"http://127.0.0.1:1/{NAME}", "hello"],
    ["ask", "--remote", "http://127.0.0.1:1", "--remote-key", f"file:{NAME}", "hello"],
    ["serve", NAME, "--port", "0"],
    ["serve", "broken", "--port", "0"],
    ["serve", "--host", NAME],
    ["serve", "--unix", f"{NAME}/{NAME}"],
    ["serve", "--add-key", NAME],
    ["serve", "--list-keys"],
    ["serve", "--remove-key", LINE],
    ["--theme", NAME],
    [NAME],
    ["config", "show"],
    ["config", "list"],
    ["config", "show", "user_name"],
    ["config", "show", "--json"],
    ["config", "show", NAME],
    ["config", "set", NAME, LINE],
    ["config", "set", "theme", LINE],
    ["config", "set", "user_name", LINE],
    ["config", "set", "model_folders", NAME],
    ["config", "unset", NAME],
    ["config", "path"],
    ["config", "edit"],
    ["personas", "list"],
    ["personas", "list", "--json"],
    ["personas", "show", "stranger"],
    ["personas", "show", "stranger", "--user", LINE],
    ["personas", "show", "stranger", "--json"],
    ["personas", "show", NAME],
    ["personas", "new", NAME],
    ["personas", "new", LINE],
    ["personas", "import", NAME, "card.json"],
    ["personas", "import", "card.json", "--json", "--name", NAME],
    ["personas", "export", "stranger", f"{NAME}.png"],
    ["personas", "export", "stranger", NAME],
    ["personas", "path", NAME],
    ["presets", "list"],
    ["presets", "list", "--json"],
    ["presets", "show", "stranger"],
    ["presets", "show", "stranger", "--json"],
    ["presets", "show", NAME],
    ["presets", "import", NAME, f"{NAME}.json"],
    ["presets", "import", f"{NAME}.json", "--json", "--name", NAME, "--force"],
    ["presets", "path", NAME],
    ["template", "list"],
    ["template", "list", "--json"],
    ["template", "show", "-m", f"models/{NAME}"],
    ["template", "show", "-m", f"models/{NAME}", "--messages", "messages.json"],
    ["template", "show", "-m", f"models/{NAME}", "--messages", "messages.json", "--json"],
    ["template", "show", NAME],
    ["template", "import", NAME],
    ["template", "import", "card.json", "--name", NAME],
    ["themes", "list"],
    ["themes", "list", "--json"],
    ["themes", "show", "stranger"],
    ["themes", "show", NAME],
    ["themes", "path", NAME],
    ["themes", "new", NAME],
    ["sessions", "list"],
    ["sessions", "list", "--json"],
    ["sessions", "show", "talk0"],
    ["sessions", "show", "talk0", "--tree"],
    ["sessions", "show", "talk0", "--json"],
    ["sessions", "show", NAME],
    ["sessions", "search", "where"],
    ["sessions", "search", "where", "--json"],
    ["sessions", "stats"],
    ["sessions", "rename", "talk1", LINE],
    ["sessions", "rename", "talk1", NAME],
    ["sessions", "tag", "talk1", LINE, NAME],
    ["sessions", "pin", NAME],
    ["sessions", "archive", NAME],
    ["sessions", "pin-message", "s0"],
    ["sessions", "edit", "q1", LINE],
    ["sessions", "edit", "q1", NAME],
    ["sessions", "choose", NAME],
    ["sessions", "branch", "q1"],
    ["sessions", "cut", NAME],
    ["sessions", "undo", "talk1"],
    ["sessions", "rm", NAME],
    ["sessions", "restore", NAME],
    ["sessions", "purge"],
    ["sessions", "reproduce", "b0", "-m", NAME],
    ["sessions", "reproduce", "a0"],
    ["sessions", "export", "talk0", "-o", f"{NAME}/{NAME}"],
    ["sessions", "export", "talk0", "-o", f"{NAME}.html", "--force"],
    ["sessions", "import", NAME, f"{NAME}.json"],
    ["sessions", "check"],
    ["sessions", "check", "--json"],
    ["sessions", "export", NAME],
]
EXPORTS = [["sessions", "export", "talk0", "--format", form] for form in ("md", "html", "jsonl", "openai")]
BODIES = {("sessions", "show"), ("template", "show"), ("sessions", "export"), ("ask", "-m")}
"""They print texts that have lines of their own, as they are."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every name and every text is hostile."""
    home = tmp_path_factory.mktemp("hostile")
    furnish(home)
    quoted = "".join(['"', *(f"\\U{ord(one):08X}" for one in LINE), '"'])
    for kind, text in {
        "personas": f"name = {quoted}\ndescription = {quoted}\nsystem = {quoted}\nmodel = {quoted}\n{quoted} = 1",
        "presets": f"{quoted} = 7\ndescription = {quoted}",
        "templates": f"{{# {LINE} #}}{{{{ messages[0].content }}",
        "themes": f"name = {quoted}",
    }.items():
        for ending in (".toml", ".jinja") if kind == "templates" else (".toml",):
            (home / "config" / kind / f"{NAME}{ending}").write_text(text, encoding="utf-8")
    (home / "config" / "remotes.toml").write_text(f'[stranger]\nurl = "http://127.0.0.1:1"\nmodel = {quoted}')
    presets = home / "config" / "presets" / "stranger.toml"
    presets.write_text(f"description = {quoted}\ntemperature = 0.5\n[foreign.{quoted}]\n{quoted} = {quoted}\na = nan")
    broken = {"architectures": [LINE], "model_type": LINE, "quantization_config": {"quant_method": LINE}}
    for folder in (home / "data" / "models" / NAME, home / "broken"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(broken))
        (folder / "model.safetensors").write_bytes(b"x" * 100)
    shutil.copytree(paths.bundled_model(), home / "models" / NAME)
    card = {"spec": "chara_card_v2", "spec_version": LINE, "data": {"name": LINE, LINE: LINE, "first_mes": LINE}}
    (home / "card.json").write_text(json.dumps(card))
    (home / f"{NAME}.json").write_text(json.dumps({"temperature": 7, LINE: LINE, "messages": LINE}))
    (home / "in").mkdir()
    for file in (home / "in" / f"{NAME}.jsonl", home / "strange.jsonl"):
        file.write_text(json.dumps({"custom_id": LINE, "url": LINE, "body": {LINE: LINE}}))
    (home / "hostile.jsonl").write_text(json.dumps({"custom_id": LINE, "prompt": LINE, LINE: LINE}))
    (home / "messages.json").write_text(json.dumps([{"role": "user", "content": LINE}]))
    with sqlite3.connect(home / "data" / "conversations.db") as database:
        database.execute("UPDATE conversation SET title = ?", (LINE,))
    return home


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    branches = {"main": {f"{LINE}.gguf": b""}, LINE: {"README.md": b""}}
    evil = {**GUIDE, f"{NAME[:-1]}.json": b"{}", "weights.safetensors": b"no weights"}
    repositories = {"org/branches": branches, "org/evil": {"main": evil}}
    with serving(FakeHub(repositories, warning=f"old; \x9b7m{FORGED}\u202e".encode())) as served:
        yield served


@pytest.fixture(scope="module")
def program() -> Iterator[ForkedCli]:
    with ForkedCli() as started:
        yield started


@pytest.fixture
def environment(home: Path, hub: FakeHub) -> dict[str, str]:
    return {
        "EXLCHAT_HOME": str(home),
        f"EXLCHAT_{NAME}": "1",
        "EDITOR": f"false {NAME}",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "PATH": os.environ["PATH"],
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(home / "hf"),
        "no_proxy": "*",
    }


def steering(raw: bytes, encoding: str) -> list[str]:
    """Characters that a terminal would obey or that hide from the eye, with what stands around them."""
    text = raw.decode(encoding, "surrogateescape")
    return [
        f"{one!r} in {text[max(at - 40, 0) : at + 40]!r}"
        for at, one in enumerate(text)
        if (unicodedata.category(one) in ("Cc", "Cs") and one not in "\n\t") or one in HIDDEN
    ]


def wrong(run: Run, encoding: str, *, terminal: bool) -> list[str]:
    """What is wrong with what a run printed."""
    # Our own: the moving line, and the colours of `themes`.
    err = run.err.replace(b"\r\x1b[2K", b"") if terminal else run.err
    out = re.sub(rb"\x1b\[[\d;]*m", b"", run.out) if terminal and run.arguments[0] == "themes" else run.out
    found = [*steering(out, encoding), *steering(err, encoding)]
    found += [] if 0 <= run.code <= 3 else [f"exit code {run.code}"]
    found += ["a traceback"] if b"Traceback" in err else []
    text = err.decode(encoding, "replace")
    if tuple(run.arguments[:2]) not in BODIES:
        text += out.decode(encoding, "replace")
    found += [f"a forged line: {line[:80]!r}" for line in text.split("\n") if line.strip().startswith(FORGED)]
    if "--json" in run.arguments and run.code == 0 and run.arguments[0] != "bench":
        json.loads(out.decode(encoding), parse_constant=pytest.fail)
    return found


def test_every_command_is_tried() -> None:
    assert {one[0] for one in COMMANDS} >= cli.COMMANDS.keys()
    for name, parser in PARSERS.items():
        (below,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
        assert {one[1] for one in COMMANDS if one[0] == name} >= below.choices.keys()


@pytest.mark.xdist_group("hostile command line")
@pytest.mark.parametrize(("encoding", "terminal"), [("ascii", False), ("utf-8", True)])
def test_no_command_is_steered_hidden_from_or_forged(
    encoding: str, terminal: bool, home: Path, environment: dict[str, str], program: ForkedCli
) -> None:
    found: dict[str, list[str]] = {}
    marked = 0
    for arguments in [*COMMANDS, *(EXPORTS if terminal else [])]:
        settings = {"EXLCHAT_USER_NAME": LINE} if arguments[:2] == ["config", "show"] else {}
        run = program.run(arguments, {**environment, **settings}, folder=home, encoding=encoding, terminal=terminal)
        marked += b"FORGED" in run.out + run.err
        if problems := wrong(run, encoding, terminal=terminal):
            found[" ".join(arguments)[:60]] = problems[:3]
    assert found == {}
    assert marked > len(COMMANDS) // 2, "too little of it is shown to try anything"


@pytest.mark.xdist_group("hostile command line")
def test_an_export_to_a_pipe_is_the_file(home: Path, environment: dict[str, str], program: ForkedCli) -> None:
    for arguments in EXPORTS:
        file = home / "exported"
        piped = program.run(arguments, environment, folder=home, encoding="ascii")
        program.run([*arguments, "-o", str(file), "--force"], environment, folder=home)
        assert piped.out == file.read_bytes()
        if arguments[-1] in ("md", "html"):
            assert steering(piped.out, "utf-8") == []
        assert "日本語".encode() in piped.out or b"\\u65e5" in piped.out


def test_a_locale_of_ascii_alone(tmp_path: Path) -> None:
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {"name": "日本", "first_mes": "ü"}}
    (tmp_path / "日本.json").write_text(json.dumps(card))
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    folder = tmp_path / "home" / "config" / "personas"
    for name, code, said in (
        (
            [],
            1,
            f"exlchat: {folder}/??.toml cannot be named in this locale; choose another name, or LC_ALL=C.UTF-8",
        ),
        (["--name", "Ni"], 0, f"{folder}/ni.toml (character card V2, JSON)"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "exlchat", "personas", "import", "日本.json", *name],
            env={**os.environ, **ascii_alone, "EXLCHAT_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert (done.returncode, (done.stdout if code == 0 else done.stderr).decode("ascii")) == (code, f"{said}\n")


@pytest.mark.xdist_group("hostile command line")
@pytest.mark.parametrize(
    "command",
    [
        "personas new NAME",
        "personas new x --from NAME",
        "themes new NAME",
        "themes new x --from NAME",
        "presets import NAME",
        "template import NAME",
        "template import card.json --name NAME",
        "config set user_name NAME",
        "config set theme NAME",
        "config unset NAME",
        "sessions export -o NAME missing",
        "sessions edit q0 NAME",
        "ask hello --begin NAME",
        "ask NAME",
    ],
)
def test_a_name_of_bytes_that_are_no_text_is_refused_in_one_line(
    command: str, home: Path, environment: dict[str, str], program: ForkedCli
) -> None:
    arguments = ["\udcff" if word == "NAME" else word for word in command.split()]
    run = program.run(arguments, environment, folder=home)
    assert run.code in (1, 2)
    assert run.out == b""
    # The hostile files of the home may have a line each before it.
    *_, line = run.err.decode().splitlines()
    assert re.match(r"exlchat( \w+)*: ", line)
    assert "Traceback" not in run.err.decode()
