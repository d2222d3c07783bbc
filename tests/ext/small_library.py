"""The smallest sources that make a library of exlchat's kind, and the compilers to build them with."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc, find_nvcc

HEADER = """#define EXL_ABI_VERSION 7
extern "C" int exl_abi_version(void);
extern "C" const char *exl_error_text(int code);
extern "C" int exl_cuda_version(void);
extern "C" int exl_card_status(void);
extern "C" int exl_fill(float *to, int count, float value, void *stream);
"""
COMMON = """#include "exlchat.h"
extern "C" int exl_abi_version(void) { return EXL_ABI_VERSION; }
extern "C" const char *exl_error_text(int code) {
    return code < 0 ? "bad argument" : cudaGetErrorString(static_cast<cudaError_t>(code));
}
extern "C" int exl_cuda_version(void) { return CUDART_VERSION; }
extern "C" int exl_card_status(void) { return cudaFree(nullptr); }
"""
FILL = """#include "exlchat.h"
__global__ void fill(float *to, int count, float value) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = value;
}
extern "C" int exl_fill(float *to, int count, float value, void *stream) {
    if (to == nullptr || count < 1) return -1;
    fill<<<(count + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(to, count, value);
    return cudaGetLastError();
}
"""


def write_sources(folder: Path) -> Path:
    """`folder`, holding sources with interface version 7 and one kernel."""
    folder.mkdir(parents=True)
    for name, text in {"exlchat.h": HEADER, "common.cu": COMMON, "fill.cu": FILL}.items():
        (folder / name).write_text(text)
    return folder


def some_nvcc(*wanted: tuple[int, int]) -> Nvcc:
    """A compiler of this machine; the test is skipped, with the reason, where there is none."""
    try:
        return find_nvcc(wanted)
    except BuildError as error:
        pytest.skip(str(error))


COMPILES = 'for to; do :; done; echo code > "$to"'
"""What a fake compiler does that always succeeds: the last argument is the file to make."""


def fake_nvcc(path: Path, version: str, *codes: int, compiling: str = "exit 1") -> Path:
    """An executable that answers the two questions as nvcc of that version does; else it does what `compiling` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = "\\n".join(f"sm_{code}" for code in codes)
    path.write_text(
        f"""#!/bin/sh
case "$1" in
--version) echo "Cuda compilation tools, release {version}, V{version}.61" ;;
--list-gpu-code) printf '{listed}\\n' ;;
*) {compiling} ;;
esac
"""
    )
    path.chmod(0o755)
    return path


def compile_plainly(folder: Path, source: str, *options: str) -> Path:
    """A shared library of one C++ source, made by the host compiler alone."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    library = folder / "plain.so"
    command = [compiler, "-shared", "-fPIC", *options, "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def builds(cache: Path) -> set[str]:
    """The names of the folders in a cache of builds."""
    return {path.name for path in (cache / "ext").iterdir() if path.is_dir()}


def without_compiler(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    """Takes every compiler away; `empty` is a folder without programs."""
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("NVCC_CCBIN", raising=False)


def until(condition: Callable[[], bool]) -> None:
    """Waits for `condition`; fails after 30 seconds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited for 30 s"
        time.sleep(0.02)
