"""`exlchat completions`: real shells are asked what they offer after tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pseudo_terminal import Terminal

ASKED = {
    "exlchat pu": "pull",
    "exlchat config set context_p": "context_policy",
    "exlchat personas show tra": "translator",
    "exlchat ask --preset determ": "deterministic",
    "exlchat chat gui": "guide",
    "exlchat --device cu": "cuda",
    "exlchat sessions import not": "notes.jsonl",
    "exlchat completions fi": "fish",
}
HOSTILE = "$(touch ran);`touch ran`"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """`exlchat` is on the path, in a folder with one file."""
    program = tmp_path / "bin" / "exlchat"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m exlchat "$@"\n')
    program.chmod(0o755)
    there = tmp_path / "there"
    there.mkdir()
    (there / "notes.jsonl").touch()
    monkeypatch.chdir(there)
    return {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "EXLCHAT_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }


def shell(*command: str, environment: dict[str, str]) -> str:
    if shutil.which(command[0], path=environment["PATH"]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert not done.stderr
    return done.stdout


def offered_by_bash(line: str, environment: dict[str, str]) -> list[str]:
    """As bash itself calls the function that it was given."""
    script = (
        'eval "$(exlchat completions bash)"; read -ra COMP_WORDS <<< "$1"; [[ $1 == *" " ]] && COMP_WORDS+=("")\n'
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); function=$(complete -p exlchat); function=${function##*-F }\n"
        'COMPREPLY=(); ${function% *}; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return shell("bash", "-c", script, "bash", line, environment=environment).splitlines()


@pytest.mark.parametrize("line", ASKED)
def test_bash_offers_what_can_follow(line: str, environment: dict[str, str]) -> None:
    assert set(offered_by_bash(line, environment)) == {ASKED[line]}


def test_fish_offers_what_can_follow(environment: dict[str, str]) -> None:
    script = 'exlchat completions fish | source; for line in $argv; complete -C $line | string join "|"; echo; end'
    offered = shell("fish", "--no-config", "-c", script, *ASKED, environment=environment)
    words = [[one.split("\t")[0] for one in line.split("|")] for line in offered.split("\n") if line]
    assert words == [[word] for word in ASKED.values()]


def test_zsh_offers_what_can_follow(environment: dict[str, str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    with Terminal(["zsh", "-f", "-i"], {**environment, "PS1": "> ", "TERM": "xterm"}) as terminal:
        terminal.type('autoload -U compinit; compinit -u -D; eval "$(exlchat completions zsh)"; echo rea""dy\n')
        terminal.wait_for("ready\r\n")
        for line, word in ASKED.items():
            before = len(terminal.sent)
            terminal.type(f"{line}\t")
            wanted = f"{line.rpartition(' ')[0]} {word}".encode()
            terminal.wait_for(lambda start=before, wanted=wanted: wanted in terminal.sent[start:])  # type: ignore[misc]
            terminal.type("\x15")


def test_a_new_model_folder_is_offered_at_once_and_no_name_is_run(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for name in ("llama", HOSTILE.replace("/", "")):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text('{"model_type": "llama"}')
        (folder / name / "model.safetensors").touch()
    shell("env", "exlchat", "config", "set", "model_folders", str(folder), environment=environment)
    assert "llama" in offered_by_bash("exlchat -m ", environment)
    assert not any("touch" in one for one in offered_by_bash("exlchat -m ", environment))
    assert offered_by_bash("exlchat -m lla", environment) == ["llama"]
    assert not Path("ran").exists()


@pytest.mark.parametrize("arguments", [[], ["bash", "--of", "models"], ["powershell"], ["--of", "secrets"]])
def test_a_wrong_command_line_is_one_line(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "exlchat", "completions", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "bash" in done.stderr or "models" in done.stderr
