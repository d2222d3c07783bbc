"""The real sources without a GPU: they compile for every supported card, load, and refuse bad arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from exlchat.ext.build import build_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library
from exlchat.ext.record import read_record
from exlchat.ext.targets import Targets
from tests.ext.small_library import some_nvcc

CARDS = ((7, 5), (8, 0), (8, 9), (9, 0), (12, 0))
ROOT = Path(__file__).resolve().parents[2]
# In a process of its own, because what it guards against is a crash. Structures are passed filled with one byte.
CALL_WITH = """
import ctypes, sys
from pathlib import Path
from exlchat.ext.errors import ExtensionError
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library

path, name, kind = sys.argv[1:]

def argument(argtype):
    if argtype is ctypes.c_void_p:
        return None if kind != "ones" else ctypes.c_void_p(-1)
    if hasattr(argtype, "contents"):
        structure = argtype._type_
        filled = b"\\xff" if kind == "ones" else b"\\0"
        return None if kind == "null" else ctypes.byref(structure.from_buffer_copy(filled * ctypes.sizeof(structure)))
    return argtype(-1 if kind == "ones" else 0)

try:
    open_library(Path(path), FUNCTIONS).function(name)(*map(argument, FUNCTIONS[name]))
except ExtensionError as error:
    print(error)
"""

# From nothing this takes three minutes on two cores, and four times as long with the optimisations, which change
# nothing that can be seen here; afterwards it lies in pytest's cache.
FAST = """#!/bin/sh
exec '{nvcc}' "$@" --Ofast-compile=max
"""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def library(pytestconfig: pytest.Config) -> Path:
    cache = pytestconfig.cache
    assert cache is not None
    folder, nvcc = cache.mkdir("exlchat-kernels"), some_nvcc(*CARDS)
    if nvcc.version.startswith("13."):
        fast = folder / "nvcc"
        fast.write_text(FAST.format(nvcc=nvcc.path))
        fast.chmod(0o755)
        nvcc = replace(nvcc, path=fast)
    return build_library(folder, Targets(CARDS), nvcc)


def test_every_kernel_compiles_for_every_card(library: Path) -> None:
    record = read_record(library.parent)
    assert record is not None
    assert record.targets == ("sm_75", "sm_80", "sm_89", "sm_90", "sm_120")


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
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_arguments_are_an_error_before_the_card_is_asked(library: Path, name: str, kind: str) -> None:
    command = [sys.executable, "-c", CALL_WITH, str(library), name, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{name} ended the process: {done.returncode} {done.stderr}"
    said = done.stdout.strip()
    assert said.startswith(f"{name}: ")
    # Negative codes are the library's own; a CUDA error would mean that the arguments had been let through.
    assert "(code -" in said
