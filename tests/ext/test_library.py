"""Opening the library: what is refused, and what an error code becomes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from exlchat.ext.errors import ExtensionError
from exlchat.ext.library import open_library, source_abi
from tests.ext.small_library import compile_plainly, write_sources

FILL = {"exl_fill": (ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p)}
ABI = 'extern "C" int exl_abi_version() { return %d; }\n'
CARD = 'extern "C" int exl_cuda_version() { return 12080; } extern "C" int exl_card_status() { return 0; }\n'
TEXT = CARD + 'extern "C" const char *exl_error_text(int code) { return code == 5 ? "five" : nullptr; }\n'


def refusal(path: Path, sources: Path) -> str:
    with pytest.raises(ExtensionError) as caught:
        open_library(path, FILL, sources=sources)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith("delete its folder, and it is built again")
    return text


def test_bad_arguments_raise_the_librarys_words(small_library: Path, small_sources: Path) -> None:
    library = open_library(small_library, FILL, sources=small_sources)
    with pytest.raises(ExtensionError, match=r"^exl_fill: bad argument \(code -1\)$"):
        library.function("exl_fill")(None, 16, 1.0, None)


def test_cuda_errors_raise_cudas_words(small_library: Path, small_sources: Path) -> None:
    library = open_library(small_library, FILL, sources=small_sources)
    assert library.error_text(2) == "out of memory"  # cudaErrorMemoryAllocation, CUDA Runtime API


def test_arguments_are_converted_and_codes_passed_on(tmp_path: Path, small_sources: Path) -> None:
    echo = (
        'extern "C" int exl_fill(void *, int count, float value, void *) { return count == 3 && value == 2 ? 0 : 5; }'
    )
    path = compile_plainly(tmp_path, ABI % 7 + TEXT + echo)
    fill = open_library(path, FILL, sources=small_sources).function("exl_fill")
    fill(None, 3, 2, None)
    with pytest.raises(ExtensionError, match=r"^exl_fill: five \(code 5\)$"):
        fill(None, 4, 2, None)
    with pytest.raises(ctypes.ArgumentError):
        fill(None, "4", 2, None)


def test_a_code_the_library_cannot_name_is_still_an_error(tmp_path: Path, small_sources: Path) -> None:
    path = compile_plainly(tmp_path, ABI % 7 + TEXT + 'extern "C" int exl_fill() { return 99; }')
    with pytest.raises(ExtensionError, match=r"unknown error \(code 99\)"):
        open_library(path, FILL, sources=small_sources).function("exl_fill")(None, 1, 1, None)


def test_another_interface_version_is_refused(tmp_path: Path, small_library: Path) -> None:
    newer = write_sources(tmp_path / "csrc")
    header = newer / "exlchat.h"
    header.write_text(header.read_text().replace("EXL_ABI_VERSION 7", "EXL_ABI_VERSION 8"))
    assert "has interface version 7, and this exlchat needs 8" in refusal(small_library, newer)


def test_a_foreign_library_is_refused(tmp_path: Path, small_sources: Path) -> None:
    path = compile_plainly(tmp_path, 'extern "C" int something() { return 7; }')
    assert "is not exlchat's CUDA extension (it has no exl_abi_version)" in refusal(path, small_sources)


def test_a_library_without_one_of_the_functions_is_refused(tmp_path: Path, small_sources: Path) -> None:
    path = compile_plainly(tmp_path, ABI % 7 + TEXT)
    assert "was made from other sources (it has no exl_fill)" in refusal(path, small_sources)


def test_no_library_at_all_is_refused(tmp_path: Path, small_sources: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("hello\n")
    for path in (text, tmp_path / "absent.so"):
        assert str(path) in refusal(path, small_sources)


def test_the_header_names_the_interface_version(tmp_path: Path) -> None:
    assert source_abi(write_sources(tmp_path / "csrc")) == 7
    with pytest.raises(ExtensionError, match=r"exlchat\.h is missing or defines no EXL_ABI_VERSION"):
        source_abi(tmp_path)
