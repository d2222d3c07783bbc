"""A build that fails, is stopped or has to wait: what is said, and what is left. The compiler is a shell script."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from exlchat.ext import build as build_module
from exlchat.ext.build import build_library, ensure_library, ready_library
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.driver import Driver
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc, ask_nvcc
from exlchat.ext.record import read_record
from exlchat.ext.targets import Targets
from tests.chat.unprivileged import assert_unprivileged, public_folder
from tests.ext.small_library import COMPILES, builds, fake_nvcc, until, without_compiler, write_sources

HOPPER = Targets(((9, 0),))
CARD = Driver((99, 0), ((9, 0),))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "csrc")


def a_compiler(folder: Path, compiling: str) -> Nvcc:
    return ask_nvcc(fake_nvcc(folder / "nvcc", "13.0", 90, compiling=compiling))


@pytest.mark.parametrize(
    ("compiling", "said"),
    [
        (
            "echo 'error: #error -- unsupported GNU version! gcc versions later than 15 are not supported!'; exit 1",
            "the C++ compiler is newer than this nvcc knows (it takes g++ up to 15); "
            "install an older g++ and name it in NVCC_CCBIN, or name a newer nvcc: exlchat build-ext --nvcc PATH",
        ),
        (
            "echo 'fatal error: error writing to /tmp/a.o: No space left on device'; exit 1",
            "the disk is full; free space in the cache folder and where temporary files go",
        ),
        (
            "echo first; echo 'Stack dump:'; echo \"nvcc error : 'cicc' died due to signal 11\"; exit 11",
            "it crashed: Stack dump: / nvcc error : 'cicc' died due to signal 11",
        ),
        ("echo working; kill -SEGV $$", "it crashed (SIGSEGV): working"),
        ("kill -KILL $$", "it was killed, perhaps for want of memory"),
        ("printf 'odd\\033[2J\\nend\\n'; exit 3", "odd [2J / end"),
        ("exit 3", "exit code 3"),
    ],
)
def test_what_is_said_of_a_compiler_that_fails(tmp_path: Path, sources: Path, compiling: str, said: str) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(BuildError) as caught:
        build_library(cache, HOPPER, a_compiler(tmp_path, compiling), sources=sources)
    log = cache / "ext" / "build.log"
    assert str(caught.value).partition(": ")[2] == f"{said}; the whole output is in {log}"
    assert log.is_file()
    assert builds(cache) == set()


def test_a_disk_that_fills_up_is_named(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build_module, "write_record", full)
    with pytest.raises(BuildError, match=r"ext cannot be used \(no space left on device\); mend its .* or free space"):
        build_library(tmp_path / "cache", HOPPER, a_compiler(tmp_path, COMPILES), sources=sources)
    assert builds(tmp_path / "cache") == set()


def test_a_cache_that_may_not_be_written_is_named_and_one_that_is_ready_still_serves(sources: Path) -> None:
    with public_folder() as folder:
        nvcc = a_compiler(folder, COMPILES)
        shutil.copytree(sources, folder / "csrc")
        made = build_library(folder / "ready", HOPPER, nvcc, sources=folder / "csrc")
        (folder / "empty").mkdir(mode=0o555)
        for path in (folder / "ready", *(folder / "ready").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

        def check() -> None:
            with pytest.raises(
                BuildError, match=r"empty/ext cannot be used \(permission denied\); mend its permissions"
            ):
                build_library(folder / "empty", HOPPER, nvcc, sources=folder / "csrc")
            assert build_library(folder / "ready", HOPPER, nvcc, sources=folder / "csrc") == made
            assert ready_library(folder / "ready", CARD, sources=folder / "csrc") == made

        assert_unprivileged(check)


def test_force_builds_again_and_what_was_stays_when_that_fails(tmp_path: Path, sources: Path) -> None:
    cache, nvcc = tmp_path / "cache", a_compiler(tmp_path, COMPILES)
    first = build_library(cache, HOPPER, nvcc, sources=sources)
    a_compiler(tmp_path, COMPILES.replace("code", "other-code"))
    assert build_library(cache, HOPPER, nvcc, sources=sources).read_text() == "code\n"
    assert build_library(cache, HOPPER, nvcc, sources=sources, force=True) == first
    assert first.read_text() == "other-code\n"
    a_compiler(tmp_path, "exit 1")
    with pytest.raises(BuildError):
        build_library(cache, HOPPER, nvcc, sources=sources, force=True)
    assert first.read_text() == "other-code\n"
    assert read_record(first.parent) is not None


def test_the_build_used_last_is_taken_without_asking_a_compiler(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    newest = build_library(cache, HOPPER, a_compiler(tmp_path, COMPILES), sources=sources)
    fat = build_library(cache, Targets(((8, 0), (9, 0))), a_compiler(tmp_path, COMPILES), sources=sources)
    os.utime(newest.parent, (2e9, 2e9))
    without_compiler(monkeypatch, tmp_path)
    assert ensure_library(cache, driver=CARD, sources=sources, shipped=tmp_path / "none") == newest
    assert ensure_library(cache, driver=Driver(None, ((8, 6),)), sources=sources, shipped=tmp_path / "none") == fat


def test_who_waits_for_another_says_so(tmp_path: Path, sources: Path) -> None:
    class EnoughError(Exception):
        pass

    def enough(progress: BuildProgress) -> None:
        assert progress.waiting
        raise EnoughError(progress.text)

    cache = tmp_path / "cache"
    (cache / "ext").mkdir(parents=True)
    with FileLock(cache / "ext" / "lock"), pytest.raises(EnoughError, match="waiting for another exlchat"):
        build_library(cache, HOPPER, a_compiler(tmp_path, COMPILES), sources=sources, on_progress=enough)


BUILD_UNTIL_STOPPED = """
import os, signal, sys
from pathlib import Path
from exlchat.ext.build import build_library
from exlchat.ext.compiling import end_compilers
from exlchat.ext.nvcc import ask_nvcc
from exlchat.ext.targets import Targets

def end_at_once(*_):
    end_compilers()
    os._exit(130)

cache, sources, nvcc, way = sys.argv[1:]
if way == "at once":
    signal.signal(signal.SIGINT, end_at_once)
try:
    build_library(Path(cache), Targets(((9, 0),)), ask_nvcc(Path(nvcc)), sources=Path(sources))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("way", ["in order", "at once"])
def test_ctrl_c_ends_the_compilers_and_the_next_build_goes_through(tmp_path: Path, sources: Path, way: str) -> None:
    cache, started = tmp_path / "cache", tmp_path / "started"
    # nvcc has children of its own, which must end as well.
    endless = f"touch {started}; sleep 1000 & wait; exit 1"
    nvcc = a_compiler(tmp_path, endless)
    command = [sys.executable, "-c", BUILD_UNTIL_STOPPED, str(cache), str(sources), str(nvcc.path), way]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path)
    until(started.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    until(lambda: not [path for path in Path("/proc").glob("[0-9]*/cwd") if _link(path) == str(tmp_path)])
    made = build_library(cache, HOPPER, a_compiler(tmp_path, COMPILES), sources=sources)
    assert builds(cache) == {made.parent.name}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
