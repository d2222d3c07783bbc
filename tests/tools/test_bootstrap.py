"""The set-up behind `make chat` and `make test`: what it decides, and what it says when it cannot go on."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module whose `.venv` lies in `tmp_path`."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    for name, value in {"VENV": venv, "STAMP": venv / "exlchat-setup.json", "LOG": venv / "setup.log"}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "DRIVER_FILE", tmp_path / "no-driver")
    module.LOG.write_text("")
    return module


def finish(bootstrap: ModuleType, **facts: object) -> None:
    known = {"python": list(sys.version_info[:2]), "torch": "cpu", "dev": False, "finished": bootstrap.fingerprint()}
    bootstrap.write_stamp(**{**known, **facts})


@pytest.mark.parametrize(
    ("facts", "dev", "ready"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"dev": True}, True, True),
        ({"dev": True}, False, True),
        ({"finished": "the hash of other pins"}, False, False),
        ({"finished": None}, False, False),
    ],
)
def test_a_finished_set_up_is_recognised(
    bootstrap: ModuleType, facts: dict[str, object], dev: bool, ready: bool
) -> None:
    finish(bootstrap, **facts)
    assert bootstrap.is_ready(bootstrap.read_stamp(), dev) is ready


def test_a_broken_or_missing_stamp_means_not_ready(bootstrap: ModuleType) -> None:
    assert not bootstrap.is_ready(bootstrap.read_stamp(), dev=False)
    bootstrap.STAMP.write_text('{"finished": ')
    assert not bootstrap.is_ready(bootstrap.read_stamp(), dev=False)


def test_a_new_card_asks_for_the_cuda_build(bootstrap: ModuleType) -> None:
    finish(bootstrap)
    bootstrap.DRIVER_FILE.write_text("NVRM version")
    assert not bootstrap.is_ready(bootstrap.read_stamp(), dev=False)
    finish(bootstrap, torch="cuda")
    assert bootstrap.is_ready(bootstrap.read_stamp(), dev=False)


def test_changed_pins_change_the_fingerprint(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("torch==1.0\n")
    monkeypatch.setattr(bootstrap, "INPUTS", (bootstrap.INPUTS[0], pins))
    before = bootstrap.fingerprint()
    pins.write_text("torch==2.0\n")
    assert bootstrap.fingerprint() != before


def test_an_old_python_gets_one_line(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "MINIMUM", (9, 0))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    assert bootstrap.main() == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "is too old: exlchat needs 9.0 or newer" in line
    assert "make chat PYTHON=" in line


def test_without_venv_and_without_root_the_exact_command_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    with pytest.raises(bootstrap.SetupError, match=rf"sudo apt-get install -y python3\.{sys.version_info[1]}-venv"):
        bootstrap.require_venv_module()


def torch_attempts(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, flavour: str, works: str) -> list[str]:
    """What pip is asked for, in order, when only the request containing `works` succeeds."""
    asked: list[str] = []

    def pip_install(*arguments: str, **_: object) -> bool:
        asked.append(" ".join(arguments))
        return works in asked[-1]

    monkeypatch.setattr(bootstrap, "pip_install", pip_install)
    bootstrap.install_torch(flavour)
    return asked


def test_a_card_gets_the_plain_requirement(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    version = bootstrap.pinned_torch()
    assert torch_attempts(bootstrap, monkeypatch, "cuda", "torch") == [f"torch=={version}"]


def test_without_a_card_the_small_build_is_tried_first(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = f"torch=={bootstrap.pinned_torch()}+cpu"
    assert torch_attempts(bootstrap, monkeypatch, "cpu", small) == [small]
    asked = torch_attempts(bootstrap, monkeypatch, "cpu", "--index-url")
    assert [a.split()[0] for a in asked] == [small, small]
    assert bootstrap.TORCH_CPU_INDEX in asked[1]


def test_pip_failing_everywhere_ends_in_pips_own_words(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.LOG.write_text("Collecting torch\nERROR: No space left on device\n")
    monkeypatch.setattr(bootstrap, "ROOT", bootstrap.VENV.parent)
    with pytest.raises(bootstrap.SetupError, match=r"torch could not be installed.*\n.*No space left on device"):
        torch_attempts(bootstrap, monkeypatch, "cpu", "nothing works")


@pytest.mark.parametrize(
    ("card", "toolkit", "installed"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_card_without_a_cuda_toolkit_gets_nvcc(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, card: bool, toolkit: bool, installed: bool
) -> None:
    asked: list[str] = []

    def pip_install(*arguments: str, **_: object) -> bool:
        asked.append(" ".join(arguments))
        return True

    monkeypatch.setattr(bootstrap, "pip_install", pip_install)
    monkeypatch.setattr(bootstrap, "has_nvidia_card", lambda: card)
    monkeypatch.setattr(bootstrap, "has_nvcc", lambda: toolkit)
    bootstrap.set_up(bootstrap.read_stamp(), dev=False)
    assert any(".[build]" in request for request in asked) is installed


def test_a_set_up_without_nvcc_is_still_one(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", bootstrap.VENV.parent)
    monkeypatch.setattr(bootstrap, "pip_install", lambda *_: False)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    bootstrap.install_compiler()
    said = capsys.readouterr().err
    assert "nvcc could not be installed (.venv/setup.log says why); exlchat doctor tells what is missing" in said
    assert "nvcc needs g++" in said


def test_progress_elsewhere_than_on_a_terminal_is_a_few_plain_lines(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = bootstrap.PipProgress()
    for line in (
        "Collecting torch==2.13.0",
        "  Downloading torch-2.13.0-cp311.whl (800.0 MB)",
        *(f"Progress {done} of 800000000" for done in range(0, 800_000_001, 100_000_000)),
        "  Downloading idna-3.20.whl (70 kB)",
        "Progress 70000 of 70000",
        "Installing collected packages: idna, torch",
    ):
        progress.feed(line)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("exlchat setup: ") for line in lines] == [
        "downloading torch-2.13.0-cp311.whl (800 MB)",
        "unpacking 2 packages",
    ]


def test_an_unfinished_set_up_is_begun_afresh(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-written package left by an interrupted run must not survive into the next one."""
    leftover = bootstrap.VENV / "lib" / "half-written"
    leftover.parent.mkdir()
    leftover.write_text("")
    bootstrap.write_stamp(python=list(sys.version_info[:2]), torch="cpu", dev=False)
    monkeypatch.setattr(bootstrap, "pip_install", lambda *arguments, **options: True)
    monkeypatch.setattr(bootstrap, "has_nvidia_card", lambda: False)
    bootstrap.set_up(bootstrap.read_stamp(), dev=False)
    assert not leftover.exists()
    assert bootstrap.is_ready(bootstrap.read_stamp(), dev=False)
    assert json.loads(bootstrap.STAMP.read_text())["torch"] == "cpu"


def test_a_venv_of_the_users_own_is_kept(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    own = bootstrap.VENV / "own"
    own.write_text("")
    monkeypatch.setattr(bootstrap, "pip_install", lambda *arguments, **options: True)
    bootstrap.set_up(bootstrap.read_stamp(), dev=True)
    assert own.exists()
    assert bootstrap.is_ready(bootstrap.read_stamp(), dev=True)


def test_a_set_up_killed_before_python_made_the_venv_is_not_taken_for_one(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap.subprocess, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.make_venv()
    assert bootstrap.read_stamp()
    assert not bootstrap.is_ready(bootstrap.read_stamp(), dev=False)


def test_older_pythons_can_parse_the_script_up_to_its_clear_line() -> None:
    ast.parse((ROOT / "tools" / "bootstrap.py").read_text(), feature_version=(3, 7))


def test_make_alone_shows_the_commands() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for command in ("make chat", "make test", "make check", "make ext", "make wheel", "make guide"):
        assert command in shown
