"""The engine's door: what is said when the card, the driver or the library does not do."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from exlchat.ext import driver as driver_module
from exlchat.ext import open as open_module
from exlchat.ext.driver import Driver, hidden_cards
from exlchat.ext.errors import ExtensionError
from exlchat.ext.library import open_library
from exlchat.ext.open import check_card, open_kernels
from tests.ext.small_library import compile_plainly

ANSWERS = """extern "C" int exl_abi_version() { return 7; }
extern "C" const char *exl_error_text(int code) { return code == 700 ? "an illegal memory access" : nullptr; }
extern "C" int exl_cuda_version() { return 13020; }
extern "C" int exl_card_status() { return %d; }
"""
DEVICE = torch.device("cuda", 0)


def refusal(folder: Path, sources: Path, status: int, driver: Driver) -> str:
    library = open_library(compile_plainly(folder, ANSWERS % status), {}, sources=sources)
    with pytest.raises(ExtensionError) as caught:
        check_card(library, driver)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_card_that_can(tmp_path: Path, small_sources: Path) -> None:
    check_card(open_library(compile_plainly(tmp_path, ANSWERS % 0), {}, sources=small_sources), Driver())


# The codes are those of NVIDIA's CUDA Runtime API.
@pytest.mark.parametrize(
    ("status", "driver", "said"),
    [
        (35, Driver((12, 8)), "were made with CUDA 13.2, and the driver here speaks CUDA 12.8: update the driver"),
        (35, Driver(), "were made with CUDA 13.2, and the driver here does not answer: update the driver"),
        (209, Driver((13, 0), ((8, 9),)), "has no code for a card of compute capability 8.9; delete its folder"),
        (700, Driver(), "the card cannot run the CUDA kernels: an illegal memory access (code 700)"),
    ],
)
def test_a_card_that_cannot(tmp_path: Path, small_sources: Path, status: int, driver: Driver, said: str) -> None:
    assert said in refusal(tmp_path, small_sources, status, driver)


def test_a_card_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (6, 1))
    with pytest.raises(ExtensionError, match=r"compute capability 6\.1 is too old: .* needs 7\.5"):
        open_kernels([DEVICE], tmp_path)


def test_another_card_of_the_machine_may_be_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Driver] = []

    def ensure(_cache: Path, *, driver: Driver, on_progress: object) -> Path:
        asked.append(driver)
        raise ExtensionError("far enough")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    monkeypatch.setattr(open_module, "ask_driver", lambda: Driver((13, 0), ((6, 1), (8, 6))))
    monkeypatch.setattr(open_module, "ensure_library", ensure)
    with pytest.raises(ExtensionError, match="far enough"):
        open_kernels([DEVICE], tmp_path)
    assert asked == [Driver((13, 0), ((8, 6),))]


@pytest.mark.parametrize(
    ("value", "driver", "hidden"),
    [
        ("", Driver((13, 0)), True),
        ("-1", Driver((12, 4)), True),
        ("0", Driver((13, 0), ((8, 9),)), False),
        ("", Driver(), False),
        (None, Driver((13, 0)), False),
    ],
)
def test_cards_that_a_variable_hides(
    monkeypatch: pytest.MonkeyPatch, value: str | None, driver: Driver, hidden: bool
) -> None:
    monkeypatch.setattr(driver_module, "ask_driver", lambda: driver)
    if value is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    said = hidden_cards()
    assert (said is not None) is hidden
    if said is not None:
        assert said.startswith(f"CUDA_VISIBLE_DEVICES={value!r} hides every NVIDIA card; unset it")


def test_without_a_driver_the_cuda_runtime_inside_answers_35(small_library: Path, small_sources: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        library = open_library(small_library, {}, sources=small_sources)
        assert library.card_status() == 35
        assert library.cuda >= (12, 0)
    else:
        pytest.skip("a driver is here")
