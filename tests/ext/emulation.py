"""Kernels compiled for the CPU: `emulated/` stands in for the card."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.record import SOURCES

STAND_INS = Path(__file__).parent / "emulated"
SAMPLER = ("sample", "sample_adjust", "sample_chain")
ATTENTION = ("attention", *(f"attention_{kind}" for kind in ("fp16", "fp8", "q8", "q6", "q4")))
GEMV = ("gemv", *(f"gemv_{rows}" for rows in (1, 2, 4, 8)))
EXPERTS = ("route", "gemv_experts", "gemv_expert_sum")
GEMM = ("gemm", *(f"gemm_{tiles}" for tiles in (2, 4, 6, 7, 8)))
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-gnu-unique", "-pthread")


def emulated_library(folder: Path, kernels: Sequence[str] = SAMPLER, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Compiles sources into `folder`, with these flags too; their functions by name, called as the library's are."""
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("kernels run on the CPU where g++ and x86-64 are")
    for path in (*SOURCES.glob("*.cu*"), SOURCES / "exlchat.h", *STAND_INS.iterdir()):
        shutil.copy(path, folder)
    command = [compiler, *FLAGS, *flags, f"-I{folder}", "-x", "c++"]
    objects = [folder / f"{name}.o" for name in kernels]
    with ThreadPoolExecutor(max_workers=2) as pool:
        made = [
            pool.submit(subprocess.run, [*command, "-c", str(one.with_suffix(".cu")), "-o", str(one)], check=True)
            for one in objects
        ]
    for one in made:
        one.result()
    library = folder / "emulated.so"
    subprocess.run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)], check=True)
    return _functions_of(library)


def another_card(folder: Path, number: int) -> dict[str, Any]:
    """The same functions on another card, which runs beside the others."""
    return _functions_of(Path(shutil.copy(folder / "emulated.so", folder / f"another{number}.so")))


def _functions_of(library: Path) -> dict[str, Any]:
    handle = ctypes.CDLL(str(library))
    found = {}
    for name, types in FUNCTIONS.items():
        if hasattr(handle, name):
            found[name] = handle[name]
            found[name].argtypes = types
    if hasattr(handle, "emulated_card"):
        found["emulated_card"] = handle["emulated_card"]
        found["emulated_card"].argtypes = [ctypes.c_int] * 3
        found["emulated_missing"] = handle["emulated_missing"]
        found["emulated_missing"].argtypes = [ctypes.c_int] * 2
    return found
