"""`exlchat build-ext`: what it builds, what it says meanwhile, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from exlchat.cli import build_ext
from exlchat.cli import main as cli
from exlchat.ext.driver import Driver
from exlchat.ext.record import LIBRARY, read_record
from exlchat.ext.targets import FAT
from tests.ext.small_library import COMPILES, fake_nvcc, until

CODES = (75, 80, 86, 89, 90, 100, 120)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    # nvcc's host compiler is only looked for, never run.
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)
    return tmp_path / "home"


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    return fake_nvcc(tmp_path / "nvcc", "13.0", *CODES, compiling=COMPILES)


def test_the_library_is_named_with_what_it_holds(nvcc: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build-ext", "--arch", "90,8.6", "--nvcc", str(nvcc)]) == 0
    said = capsys.readouterr()
    path, facts = said.out.splitlines()
    assert Path(path).is_file()
    assert home / "cache" / "ext" in Path(path).parents
    assert re.fullmatch(r"sm_86, sm_90a, 0\.0 MB, nvcc 13\.0\.61; built in \d+ s", facts)
    assert all(line.startswith("exlchat: ") for line in said.err.splitlines())
    assert re.search(r"^exlchat: \d+ of \d+ steps, 0 s: compiling .*\.cu", said.err)
    assert f"built {LIBRARY}" in said.err.splitlines()[-1]


def test_what_is_there_is_not_built_again_unless_forced(nvcc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build-ext", "--arch", "8.9", "--nvcc", str(nvcc)]
    assert cli.main(command) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert cli.main(command) == 0
    again = capsys.readouterr()
    assert again.out.splitlines()[0] == first
    assert again.out.endswith("built before (--force builds it again)\n")
    assert again.err == ""
    assert cli.main([*command, "--force"]) == 0
    assert "built in" in capsys.readouterr().out


def test_all_is_what_a_wheel_holds(nvcc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build-ext", "--arch", "all", "--nvcc", str(nvcc)]) == 0
    record = read_record(Path(capsys.readouterr().out.splitlines()[0]).parent)
    assert record is not None
    assert record.targets == FAT.names


def test_the_cards_of_this_machine_without_the_one_that_is_too_old(
    nvcc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_ext, "ask_driver", lambda: Driver((13, 0), ((6, 1), (8, 6), (8, 6))))
    assert build_ext.run(["--nvcc", str(nvcc)]) == 0
    said = capsys.readouterr()
    assert "sm_86, 0.0 MB" in said.out
    assert "a card of compute capability 6.1 is left out: the kernels need 7.5 or newer" in said.err


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Driver(), "no NVIDIA card answers here; `exlchat doctor` says more; or name what to build for: --arch 8.9"),
        (Driver((13, 0), ((6, 1),)), "compute capability 6.1 is too old"),
        (
            Driver((12, 4), ((8, 6),)),
            "makes code for drivers of CUDA 13 or newer, and the driver here speaks CUDA 12.4",
        ),
    ],
)
def test_a_machine_that_cannot_be_built_for_is_one_line(
    driver: Driver, said: str, nvcc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_ext, "ask_driver", lambda: driver)
    assert build_ext.run(["--nvcc", str(nvcc)]) == 1
    output = capsys.readouterr()
    assert said in output.err.splitlines()[-1]
    assert output.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "6.1"], "compute capability 6.1 is too old"),
        (["--arch", "8.9", "--nvcc", "no/such/nvcc"], "no/such/nvcc cannot be run (No such file or directory)"),
        (["--arch", "12.1"], "/nvcc) cannot build for compute capability 12.1"),
    ],
)
def test_what_cannot_be_built_is_one_line_and_exit_code_1(
    arguments: list[str], said: str, nvcc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(nvcc.parent)
    chosen = [] if "--nvcc" in arguments else ["--nvcc", "./nvcc"]
    assert cli.main(["build-ext", *arguments, *chosen]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line


def start(*arguments: str, stdout: int = subprocess.DEVNULL, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "exlchat", "build-ext", "--arch", "9.0", *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=stderr)


def test_ctrl_c_is_exit_code_130_and_leaves_nothing_behind(tmp_path: Path, home: Path) -> None:
    started = tmp_path / "started"
    endless = fake_nvcc(tmp_path / "nvcc", "13.0", *CODES, compiling=f"touch {started}; sleep 1000 & wait")
    process = start("--nvcc", str(endless), stdout=subprocess.PIPE)
    until(started.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err.splitlines()[-1] == b"exlchat: stopped; what was built before is untouched"
    assert {path.name for path in (home / "cache" / "ext").iterdir()} == {"build.log", "lock"}


def test_a_second_one_waits_for_the_first_and_says_so(nvcc: Path, home: Path) -> None:
    root = home / "cache" / "ext"
    root.mkdir(parents=True)
    with FileLock(root / "lock"):
        process = start("--nvcc", str(nvcc))
        assert process.stderr is not None
        assert process.stderr.readline() == b"exlchat: waiting for another exlchat that builds the CUDA kernels\n"
    assert process.wait(timeout=30) == 0
    # Said once, however long it waits.
    assert b"waiting" not in process.stderr.read()
    process.stderr.close()


def test_on_a_terminal_it_is_one_line_that_goes_away(nvcc: Path) -> None:
    master, slave = pty.openpty()
    process = start("--nvcc", str(nvcc), stderr=slave)
    os.close(slave)
    shown = b""
    with os.fdopen(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        # Linux says "input/output error" when the last program on the other side has gone.
        while piece := terminal.read(4096):
            shown += piece
    assert process.wait(timeout=30) == 0
    assert b"compiling" in shown
    assert b"\n" not in shown
    assert shown.endswith(b"\r\x1b[2K")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_result_that_cannot_be_written_is_one_line(nvcc: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = start("--nvcc", str(nvcc), stdout=full.fileno())
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.endswith(b"exlchat: standard output cannot be written (no space left on device)\n")


def test_torch_is_never_imported(nvcc: Path) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "exlchat",
        "build-ext",
        "--arch",
        "9.0",
        "--nvcc",
        str(nvcc),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not set(re.findall(r"\|\s+(\w+)$", done.stderr, re.MULTILINE)) & {"torch", "textual", "numpy"}
