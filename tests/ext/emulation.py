"""The sampler's kernels compiled for the CPU: `emulated/` stands in for the card."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.record import SOURCES

STAND_INS = Path(__file__).parent / "emulated"
KERNELS = ("sample", "sample_adjust", "sample_chain")
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-pthread")


def emulated_library(folder: Path, *flags: str) -> dict[str, Any]:
    """Compiles into `folder`, with these flags too; the functions by name, which take what the library's take."""
    import ctypes

    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("kernels run on the CPU where g++ and x86-64 are")
    for path in (*SOURCES.glob("sample*"), SOURCES / "exlchat.h", *STAND_INS.iterdir()):
        shutil.copy(path, folder)
    library = folder / "emulated.so"
    sources = [str(folder / f"{name}.cu") for name in KERNELS]
    subprocess.run([compiler, *FLAGS, *flags, "-shared", "-x", "c++", *sources, "-o", str(library)], check=True)
    handle = ctypes.CDLL(str(library))
    found = {}
    for name in ("exl_sample", "exl_adjust", "exl_chain"):
        found[name] = handle[name]
        found[name].argtypes = FUNCTIONS[name]
    return found
