"""Building the library with the real compiler: what is built when, and what is left when it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from exlchat.ext.build import KEPT, build_library, ensure_library
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.driver import Driver
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc
from exlchat.ext.record import LIBRARY, BuildRecord, read_record, write_record
from exlchat.ext.targets import Targets
from tests.ext.small_library import builds, some_nvcc, until, without_compiler, write_sources

HOPPER = Targets(((9, 0),))
CARD = Driver((99, 0), ((9, 0),))
BUILD_AND_COUNT = """
import sys
from pathlib import Path
from exlchat.ext.build import build_library
from exlchat.ext.nvcc import find_nvcc
from exlchat.ext.targets import Targets
seen = []
cache, sources = map(Path, sys.argv[1:])
print(build_library(cache, Targets(((9, 0),)), find_nvcc([(9, 0)]), sources=sources, on_progress=seen.append))
print(sum(progress.text.startswith("built") for progress in seen))
"""


@pytest.fixture
def nvcc() -> Nvcc:
    return some_nvcc((9, 0))


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "csrc")


@pytest.fixture
def ready(small_library: Path, tmp_path: Path) -> Path:
    """A cache folder in which the small library for sm_90 has been built."""
    shutil.copytree(small_library.parents[1], tmp_path / "ready" / "ext")
    return tmp_path / "ready"


def test_a_build_leaves_the_library_and_its_record(small_library: Path) -> None:
    assert {path.name for path in small_library.parent.iterdir()} == {LIBRARY, "build.json"}
    record = read_record(small_library.parent)
    assert record is not None
    assert record.targets == ("sm_90a",)
    assert not [path for path in small_library.parents[1].iterdir() if path.name.startswith("building-")]


def test_the_cuda_runtime_inside_is_not_seen_from_outside(small_library: Path) -> None:
    """torch brings another one into the process; neither may take the other's functions."""
    if shutil.which("nm") is None:
        pytest.skip("no nm here")
    listed = subprocess.run(["nm", "-D", small_library], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    assert "exl_fill" in names
    assert not [name for name in names if name.startswith(("cuda", "_ZNSt", "_Zn", "_Zd"))]


def test_progress_goes_up_and_ends_at_the_total(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    seen: list[BuildProgress] = []
    build_library(tmp_path / "cache", HOPPER, nvcc, sources=sources, on_progress=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].total) == (3, 3)
    assert any("fill.cu" in progress.text for progress in seen)


def test_what_is_built_is_not_built_again(ready: Path, nvcc: Nvcc, small_sources: Path, small_library: Path) -> None:
    seen: list[BuildProgress] = []
    again = build_library(ready, HOPPER, nvcc, sources=small_sources, on_progress=seen.append)
    assert (again.parent.name, seen) == (small_library.parent.name, [])


def test_a_changed_header_and_another_card_are_built_anew(
    ready: Path, nvcc: Nvcc, sources: Path, small_library: Path
) -> None:
    header = sources / "exlchat.h"
    header.write_text(header.read_text() + "// changed\n")
    changed = build_library(ready, HOPPER, nvcc, sources=sources)
    other_card = build_library(ready, Targets(((8, 9),)), nvcc, sources=sources)
    assert len({small_library.parent.name, changed.parent.name, other_card.parent.name}) == 3
    assert builds(ready) == {small_library.parent.name, changed.parent.name, other_card.parent.name}


def test_a_library_that_was_cut_short_is_built_again(ready: Path, nvcc: Nvcc, small_sources: Path) -> None:
    (folder,) = (ready / "ext" / name for name in builds(ready))
    whole = (folder / LIBRARY).stat().st_size
    with (folder / LIBRARY).open("r+b") as file:
        file.truncate(whole // 2)
    built = build_library(ready, HOPPER, nvcc, sources=small_sources)
    assert built == folder / LIBRARY
    assert read_record(folder) is not None


def test_sources_that_nvcc_rejects(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    (sources / "fill.cu").write_text('#include "exlchat.h"\nint broken( { }\n')
    cache = tmp_path / "cache"
    with pytest.raises(BuildError) as caught:
        build_library(cache, HOPPER, nvcc, sources=sources)
    said, log = str(caught.value), cache / "ext" / "build.log"
    assert "\n" not in said
    assert "nvcc could not make fill.cu: " in said
    assert "error" in said
    assert said.endswith(f"the whole output is in {log}")
    assert "fill.cu" in log.read_text()
    assert builds(cache) == set()


def test_a_function_that_is_nowhere_fails_at_build_time(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    with (sources / "fill.cu").open("a") as file:
        file.write('int nowhere();\nextern "C" int exl_more() { return nowhere(); }\n')
    with pytest.raises(BuildError, match=f"could not make {LIBRARY}: .*nowhere"):
        build_library(tmp_path / "cache", HOPPER, nvcc, sources=sources)


def test_no_sources(tmp_path: Path, nvcc: Nvcc) -> None:
    (tmp_path / "csrc").mkdir()
    with pytest.raises(BuildError, match=r"csrc holds no CUDA sources; install exlchat again"):
        build_library(tmp_path / "cache", HOPPER, nvcc, sources=tmp_path / "csrc")


def test_a_stopped_build_leaves_neither_files_nor_processes(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    class StopError(Exception):
        pass

    def stop(progress: BuildProgress) -> None:
        raise StopError

    with pytest.raises(StopError):
        build_library(tmp_path / "cache", HOPPER, nvcc, sources=sources, on_progress=stop)
    assert builds(tmp_path / "cache") == set()
    # nvcc's children have been killed by now, but the kernel may still be taking them down.
    until(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(sources) in _read(path)])


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_two_processes_build_once(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    command = [sys.executable, "-c", BUILD_AND_COUNT, str(tmp_path / "cache"), str(sources)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    answers = [process.communicate(timeout=100)[0].split() for process in pair]
    assert answers[0][0] == answers[1][0]
    assert sorted(answer[1] for answer in answers) == ["0", "1"]


def test_a_cache_that_cannot_be_made(tmp_path: Path, nvcc: Nvcc, sources: Path) -> None:
    (tmp_path / "cache").write_text("a file\n")
    with pytest.raises(BuildError, match=r"cache/ext cannot be used .*; mend its permissions or free space there"):
        build_library(tmp_path / "cache", HOPPER, nvcc, sources=sources)


def test_only_the_builds_used_last_stay(ready: Path, nvcc: Nvcc, small_sources: Path, small_library: Path) -> None:
    for age in range(1, KEPT + 2):
        folder = ready / "ext" / f"older-{age}"
        shutil.copytree(small_library.parent, folder)
        os.utime(folder, (1e9 - age, 1e9 - age))
    build_library(ready, HOPPER, nvcc, sources=small_sources)
    assert builds(ready) == {small_library.parent.name, "older-1", "older-2"}


def test_the_shipped_library_is_taken_without_a_compiler(
    small_library: Path, small_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch, tmp_path)
    shipped = small_library.parent
    taken = ensure_library(tmp_path / "cache", driver=CARD, sources=small_sources, shipped=shipped)
    assert taken == small_library


@pytest.mark.parametrize("reason", ["other sources", "other card", "old driver", "cut short"])
def test_a_shipped_library_that_does_not_fit_is_not_taken(
    reason: str, small_library: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch, tmp_path)
    shipped = tmp_path / "lib"
    shutil.copytree(small_library.parent, shipped)
    driver = CARD
    if reason == "other sources":
        (sources / "fill.cu").write_text("// other\n")
    elif reason == "other card":
        driver = Driver((99, 0), ((9, 0), (12, 0)))
    elif reason == "old driver":
        driver = Driver((11, 8), CARD.cards)
    else:
        (shipped / LIBRARY).write_bytes(b"")
    with pytest.raises(BuildError) as caught:
        ensure_library(tmp_path / "cache", driver=driver, sources=sources, shipped=shipped)
    made = read_record(shipped)
    if reason == "old driver":
        assert made is not None
        versions = f"made with CUDA {made.cuda[0]}.{made.cuda[1]}, and the driver here speaks CUDA 11.8: update the"
        assert versions in str(caught.value)
    else:
        assert "needs the C++ compiler" in str(caught.value)


def test_what_was_built_still_runs_when_the_compiler_is_gone(
    ready: Path, small_library: Path, small_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch, tmp_path)
    taken = ensure_library(ready, driver=CARD, sources=small_sources, shipped=tmp_path / "none")
    assert taken == ready / "ext" / small_library.parent.name / LIBRARY


def test_a_missing_library_is_built_for_the_cards_that_are_here(nvcc: Nvcc, sources: Path, tmp_path: Path) -> None:
    two_cards = Driver((99, 0), ((9, 0), (8, 6)))
    made = ensure_library(tmp_path / "cache", driver=two_cards, sources=sources, shipped=tmp_path / "none")
    record = read_record(made.parent)
    assert record is not None
    assert record.targets == ("sm_86", "sm_90a")


def test_a_record_that_is_damaged_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(b"1234")
    write_record(tmp_path, BuildRecord("hash", ("sm_90a",), "13.0.88", 4))
    assert read_record(tmp_path) == BuildRecord("hash", ("sm_90a",), "13.0.88", 4)
    whole = '{"sources": "", "size": 4, "nvcc": %s, "targets": %s}'
    others = (whole % ("13", "[]"), whole % ('"new"', "[]"), whole % ('"13.0.88"', '["sm"]'))
    for text in ("", "[]", '{"size": 4, "targets": []}', '{"size": 4}', "\x00", *others):
        (tmp_path / "build.json").write_text(text)
        assert read_record(tmp_path) is None
