"""The ctypes structures lie in memory as the C compiler lays out the header's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from exlchat.ext import functions
from exlchat.ext.record import SOURCES

STRUCTURES = [
    structure
    for structure in vars(functions).values()
    if isinstance(structure, type) and issubclass(structure, ctypes.Structure) and structure is not ctypes.Structure
]
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler, without which nvcc does not work either")
def test_every_field_is_where_the_header_has_it_and_every_constant_what_it_says(tmp_path: Path) -> None:
    offsets = {
        f"Exl{structure.__name__[1:]}.{name}": getattr(structure, name).offset
        for structure in STRUCTURES
        for name, *_ in structure._fields_
    }
    sizes = {f"Exl{structure.__name__[1:]}": ctypes.sizeof(structure) for structure in STRUCTURES}
    constants = {f"EXL_{name}": value for name, value in functions.CONSTANTS.items()}
    assert len(offsets) > 100
    assert len(constants) > 50
    source, program = tmp_path / "offsets.cpp", tmp_path / "offsets"
    values = {
        **{field: f"offsetof({field.replace('.', ', ')})" for field in offsets},
        **{structure: f"sizeof({structure})" for structure in sizes},
        **{name: name for name in constants},
    }
    lines = "\n".join(f'printf("{name} %lld\\n", (long long){value});' for name, value in values.items())
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "exlchat.h"\nint main() {{\n{lines}\n}}\n', encoding="utf-8"
    )
    subprocess.run([str(COMPILER), "-I", str(SOURCES), str(source), "-o", str(program)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    theirs = {name: int(value) for name, value in (line.split() for line in told.splitlines())}
    assert offsets | sizes | constants == theirs
