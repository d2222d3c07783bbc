"""Which compiler is taken, and what is said when none fits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exlchat.ext import nvcc as nvcc_module
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import ask_nvcc, find_nvcc, usual_places, wheel_compilers
from tests.ext.small_library import fake_nvcc


@pytest.fixture(autouse=True)
def host_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is only looked for, never run; so the tests need none."""
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)


@pytest.fixture
def cuda12(tmp_path: Path) -> Path:
    return fake_nvcc(tmp_path / "cuda-12.4" / "bin" / "nvcc", "12.4", 50, 70, 75, 80, 86, 89, 90)


@pytest.fixture
def cuda13(tmp_path: Path) -> Path:
    return fake_nvcc(tmp_path / "cuda-13.0" / "bin" / "nvcc", "13.0", 75, 80, 86, 89, 90, 100, 120)


def refusal(*places: Path, wanted: tuple[int, int], driver_cuda: tuple[int, int] | None = None) -> str:
    with pytest.raises(BuildError) as caught:
        find_nvcc([wanted], driver_cuda=driver_cuda, places=places)
    text = str(caught.value)
    assert "\n" not in text
    # What it installs makes code for CUDA 13, which an older driver does not run.
    assert ("pip install 'exlchat[build]'" in text) is (driver_cuda is None or driver_cuda >= (13, 0))
    return text


def test_the_first_place_that_fits_is_taken(cuda12: Path, cuda13: Path, tmp_path: Path) -> None:
    assert find_nvcc([(8, 9)], places=[tmp_path / "none", cuda12, cuda13]).path == cuda12
    assert find_nvcc([(8, 9), (12, 0)], places=[cuda12, cuda13]).path == cuda13
    assert find_nvcc([(8, 9)], places=[cuda13, cuda12], driver_cuda=(12, 8)).path == cuda12
    assert find_nvcc([(8, 9)], places=[cuda13], driver_cuda=(13, 0)).version == "13.0.61"


def test_a_compiler_too_old_for_the_card(cuda12: Path) -> None:
    said = refusal(cuda12, wanted=(12, 0))
    assert f"nvcc 12.4.61 ({cuda12}) cannot build for compute capability 12.0: it is too old" in said


def test_a_compiler_that_has_dropped_the_card(cuda13: Path) -> None:
    assert "cannot build for compute capability 7.0: it is too new" in refusal(cuda13, wanted=(7, 0))


def test_a_driver_older_than_the_compiler(cuda13: Path) -> None:
    said = refusal(cuda13, wanted=(8, 9), driver_cuda=(12, 8))
    assert "makes code for drivers of CUDA 13 or newer, and the driver here speaks CUDA 12.8: update the driver" in said
    assert said.endswith("or install the toolkit of CUDA 12")


def test_a_compiler_of_another_age(tmp_path: Path) -> None:
    old = fake_nvcc(tmp_path / "nvcc", "11.8", 75, 80, 86)
    assert "is too old: 12.1 or newer is needed" in refusal(old, wanted=(8, 6))


def test_something_else_called_nvcc(tmp_path: Path, cuda13: Path) -> None:
    other = tmp_path / "nvcc"
    other.write_text("#!/bin/sh\necho no\n")
    assert f"{other} cannot be run (permission denied)" in refusal(other, wanted=(9, 0)).lower()
    other.chmod(0o755)
    assert f"{other} does not answer as nvcc does" in refusal(other, wanted=(9, 0))
    assert find_nvcc([(9, 0)], places=[other, cuda13]).path == cuda13


def test_no_compiler_anywhere(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nvcc", wanted=(9, 0)).startswith("no CUDA compiler (nvcc) is here; ")


def test_no_compiler_and_a_driver_that_the_wheels_are_too_new_for(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        find_nvcc([(8, 6)], driver_cuda=(12, 4), places=[tmp_path / "nvcc"])
    said = str(caught.value)
    assert "the driver speaks CUDA 12.4: install the toolkit of CUDA 12, or update the driver to one of CUDA 13" in said


def test_the_one_the_user_names_is_not_replaced_by_another(cuda12: Path, cuda13: Path) -> None:
    with pytest.raises(BuildError, match=r"12\.4\.61 .* too old; leave out the choice of nvcc"):
        find_nvcc([(12, 0)], named=cuda12, places=[cuda13])
    assert find_nvcc([(9, 0)], named=cuda12, places=[cuda13]).path == cuda12


def test_no_host_compiler(cuda13: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NVCC_CCBIN", raising=False)
    with pytest.raises(
        BuildError, match=r"needs the C\+\+ compiler g\+\+, which is not here; install it .*apt install"
    ):
        find_nvcc([(9, 0)], places=[cuda13])


def test_places_in_their_order(cuda12: Path, cuda13: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "site-packages" / "nvidia"
    wheel = fake_nvcc(wheels / "cu13" / "bin" / "nvcc", "13.1", 90)
    monkeypatch.setenv("CUDA_HOME", str(cuda12.parents[1]))
    monkeypatch.setenv("PATH", str(cuda13.parent))
    monkeypatch.setattr(nvcc_module, "_nvidia_folders", lambda: [wheels])
    assert list(usual_places()) == [cuda12, cuda13, Path("/usr/local/cuda/bin/nvcc"), wheel]


def test_the_newest_wheel_comes_first(tmp_path: Path) -> None:
    newer, older = (fake_nvcc(tmp_path / name / "bin" / "nvcc", "13.0", 90) for name in ("cu14", "cu13"))
    fake_nvcc(tmp_path / "cudnn" / "bin" / "nvcc", "1.0", 90)
    assert list(wheel_compilers([tmp_path])) == [newer, older]


def test_the_runtime_of_a_wheel_is_found_beside_it(tmp_path: Path) -> None:
    path = fake_nvcc(tmp_path / "cu13" / "bin" / "nvcc", "13.0", 90, 100)
    assert ask_nvcc(path).library_folders == ()
    lib = tmp_path / "cu13" / "lib"
    lib.mkdir()
    (lib / "libcudart_static.a").touch()
    asked = ask_nvcc(path)
    assert asked.library_folders == (lib,)
    assert asked.capabilities == {(9, 0), (10, 0)}
