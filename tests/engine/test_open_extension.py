"""The kernels at load: what the user is told while they are compiled, and when they cannot be had."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from exlchat.engine import LoadProgress, ModelError, loading
from exlchat.ext import nvcc
from exlchat.ext import open as open_module
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.driver import Driver
from tests.ext.small_library import fake_nvcc

CARD = torch.device("cuda", 0)


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an RTX 40 card and g++, and nothing that could compile for the card."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    monkeypatch.setattr(open_module, "ask_driver", lambda: Driver((13, 0), ((8, 9),)))
    monkeypatch.setattr(nvcc, "usual_places", lambda: iter(()))
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)


def refusal(cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loading.open_extension([CARD], cache, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("no_nvcc")
def test_without_a_compiler_the_line_says_what_to_install_and_how_to_do_without(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert said.startswith("no CUDA compiler (nvcc) is here; pip install 'exlchat[build]'")
    assert "--no-ext" in said


@pytest.mark.usefixtures("no_nvcc")
def test_without_a_host_compiler_that_is_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVCC_CCBIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(tmp_path)
    assert "nvcc needs the C++ compiler g++, which is not here; install it" in said
    assert "--no-ext" in said


@pytest.mark.usefixtures("no_nvcc")
def test_a_compiler_that_crashes_is_quoted_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = fake_nvcc(tmp_path / "nvcc", "13.0", 89, compiling="echo 'Segmentation fault'; exit 139")
    monkeypatch.setattr(nvcc, "usual_places", lambda: iter([crashing]))
    said = refusal(tmp_path)
    assert "it crashed: Segmentation fault; the whole output is in " in said
    assert os.path.join("ext", "build.log") in said


def test_compiling_is_told_as_progress_of_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_kernels(_devices: object, _cache: Path, *, on_progress: Any) -> str:
        on_progress(BuildProgress("waiting for another", 0, 1, waiting=True))
        on_progress(BuildProgress("compiling gemv.cu", 3, 9))
        return "kernels"

    monkeypatch.setattr(loading, "open_kernels", open_kernels)
    told: list[LoadProgress] = []
    opened: object = loading.open_extension([CARD], tmp_path, told.append)
    assert opened == "kernels"
    assert told == [
        LoadProgress(0, 1, "waiting for another"),
        LoadProgress(3, 9, "compiling the CUDA kernels (first run on this card)"),
    ]
