"""The real sources without a GPU: they compile for old and new cards, load, and refuse bad arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from exlchat.ext.build import build_library
from exlchat.ext.compiling import COMPILE_FLAGS
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library
from exlchat.ext.nvcc import Nvcc
from exlchat.ext.record import SOURCES, read_record
from exlchat.ext.targets import Targets
from tests.ext.small_library import some_nvcc

OLDEST, NEWEST = (7, 5), (12, 0)
# These have, between them, nearly every line that is for old cards alone (`__CUDA_ARCH__`); the others of the sources
# are compiled for such a card with --long, and all for every card by `make wheel`.
LINES_FOR_OLD_CARDS = ("attention_fp8.cu", "gemm_4.cu", "gemv_4.cu", "sample.cu")
ROOT = Path(__file__).resolve().parents[2]
# Each call in a process of its own, because what it guards against is a crash. Structures come filled with one byte.
CALL_ALL_WITH = """
import ctypes, os, sys
from pathlib import Path
from exlchat.ext.errors import ExtensionError
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library

path, kind = sys.argv[1:]
library = open_library(Path(path), FUNCTIONS)

def argument(argtype):
    if argtype is ctypes.c_void_p:
        return None if kind != "ones" else ctypes.c_void_p(-1)
    if hasattr(argtype, "contents"):
        structure = argtype._type_
        filled = b"\\xff" if kind == "ones" else b"\\0"
        return None if kind == "null" else ctypes.byref(structure.from_buffer_copy(filled * ctypes.sizeof(structure)))
    return argtype(-1 if kind == "ones" else 0)

def call(name):
    try:
        library.function(name)(*map(argument, FUNCTIONS[name]))
    except ExtensionError as error:
        print(error, flush=True)
    else:
        print(f"{name} took them", flush=True)

for name in FUNCTIONS:
    if not (child := os.fork()):
        call(name)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"{name} ended the process: {status}", flush=True)
"""

# From nothing this takes minutes on two cores, and four times as long with the optimisations, which change nothing that
# can be seen here; afterwards it lies in pytest's cache. The compilers give way to the tests that run beside them.
FAST = """#!/bin/sh
exec nice '{nvcc}' "$@" --Ofast-compile=max
"""
# One worker waits for the compilers, the others go on.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("kernels")]


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Path:
    cache = pytestconfig.cache
    assert cache is not None
    folder = cache.mkdir("exlchat-kernels")
    return build_library(folder, Targets((NEWEST,)), fast_nvcc(folder))


def fast_nvcc(folder: Path) -> Nvcc:
    nvcc = some_nvcc(OLDEST, NEWEST)
    if not nvcc.version.startswith("13."):
        return nvcc
    fast = folder / "nvcc"
    fast.write_text(FAST.format(nvcc=nvcc.path))
    fast.chmod(0o755)
    return replace(nvcc, path=fast)


def test_every_kernel_compiles_for_new_cards(library: Path) -> None:
    record = read_record(library.parent)
    assert record is not None
    assert record.targets == ("sm_120",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, marks=() if one.name in LINES_FOR_OLD_CARDS else pytest.mark.long)
        for one in sorted(SOURCES.glob("*.cu"))
    ],
)
def test_every_kernel_compiles_for_old_cards(name: str, tmp_path: Path) -> None:
    command = [fast_nvcc(tmp_path).path, *COMPILE_FLAGS, *Targets((OLDEST,)).flags, "-c", SOURCES / name]
    subprocess.run([*command, "-o", tmp_path / "compiled.o"], check=True, capture_output=True)


def test_it_loads_without_a_gpu_and_has_every_function(library: Path) -> None:
    opened = open_library(library, FUNCTIONS)
    assert opened.error_text(-1) != opened.error_text(-12345)


def test_it_says_itself_that_no_card_can_run_it(library: Path) -> None:
    opened = open_library(library, FUNCTIONS)
    assert opened.cuda >= (12, 0)
    if torch.cuda.is_available():
        assert opened.card_status() == 0
    else:
        # Of the CUDA Runtime API: no driver or one too old, no device.
        assert opened.card_status() in (35, 100)


@pytest.mark.parametrize("kind", ["null", "zeros", "ones"])
def test_bad_arguments_are_an_error_before_the_card_is_asked(library: Path, kind: str) -> None:
    command = [sys.executable, "-c", CALL_ALL_WITH, str(library), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(FUNCTIONS) > 10
    for name, line in zip(FUNCTIONS, said, strict=True):
        # Negative codes are the library's own; a CUDA error would mean that the arguments had been let through.
        assert line.startswith(f"{name}: ")
        assert "(code -" in line
