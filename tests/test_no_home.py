"""A user without a home folder and without a name, as `docker run --user 12345` makes one."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import exlchat
from tests.chat.unprivileged import public_folder
from tests.patience import PATIENCE

NOBODY = 12345
"""A number that no line of /etc/passwd has."""
SOURCE = Path(exlchat.__file__).parents[1]


@cache
def as_nobody() -> list[str]:
    """What runs a program as that user; Python itself may lie where only root can read."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can become a user without a name")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    # As exlchat does for templates.
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    for command in (become, [*become, *reading]):
        if subprocess.run([*command, sys.executable, "-c", child], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("no other user can run this Python")


@pytest.fixture
def home() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def run(*command: str, folder: Path, home: Path | None, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*as_nobody(), sys.executable, *command],
        env=environment if home is None else {**environment, "EXLCHAT_HOME": str(home)},
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_home_is_asked_for_where_it_may_be_missing() -> None:
    asks = re.compile(r"\.expanduser\((?!path\))|Path\.home\(|\bgetuser\b|^import pwd|\bgetlogin\(", re.MULTILINE)
    package = Path(exlchat.__file__).parent
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if asks.search(file.read_text())}
    # Only for compiled kernels where nobody has named a folder; without a home a line says so.
    assert found == {"engine/loading.py"}


def test_every_module_can_be_imported(home: Path) -> None:
    names = [
        one.name for one in pkgutil.walk_packages(exlchat.__path__, "exlchat.") if not one.name.endswith("__main__")
    ]
    done = run("-c", f"import importlib\nfor name in {names}: importlib.import_module(name)", folder=home, home=None)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "ask hello --max-tokens 2 --device cpu",
        "config show",
        "doctor",
        "models",
        "personas new x",
        "presets list",
        "sessions list",
        "template show -m guide",
        "themes new x",
    ],
)
def test_a_folder_of_its_own_is_all_it_takes(command: str, home: Path) -> None:
    done = run("-m", "exlchat", *command.split(), folder=home, home=home / "of-its-own")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert [one.name for one in home.iterdir()] in (["of-its-own"], [])


@pytest.mark.parametrize("command", ["ask hello", "config show", "doctor", "models", "sessions list", "pull org/name"])
def test_without_one_a_line_says_what_to_set(command: str, home: Path) -> None:
    done = run("-m", "exlchat", *command.split(), folder=home, home=None)
    assert done.returncode == 1
    assert done.stderr == "exlchat: there is no home folder to keep anything in; set EXLCHAT_HOME to a folder\n"
    assert list(home.iterdir()) == []


def test_a_home_that_there_is_not_is_named(home: Path) -> None:
    done = run("-m", "exlchat", "config", "show", folder=home, home=Path("~/exlchat"))
    assert done.stderr == "exlchat: EXLCHAT_HOME is ~/exlchat, and there is no such home folder; write the whole path\n"


@pytest.mark.parametrize("mode", [[], ["--line"], ["--plain"]], ids=["app", "line", "plain"])
def test_the_chat_opens_and_ends(mode: list[str], home: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {"PATH": os.defpath, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    program = subprocess.Popen(
        [*as_nobody(), sys.executable, "-m", "exlchat", "guide", *mode],
        env={**environment, "EXLCHAT_HOME": str(home)},
        cwd=home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen, end = b"", time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):  # it has gone
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65536)
            elif b"guide" in seen:
                # Typed again and again: what comes before it reads is thrown away.
                os.write(ours, b"/quit\r")
    os.close(ours)
    assert program.wait(PATIENCE) == 0, seen[-500:]
    assert b"Traceback" not in seen
