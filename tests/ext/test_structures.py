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
def test_every_field_is_where_the_header_has_it(tmp_path: Path) -> None:
    ours = {
        f"Exl{structure.__name__[1:]}.{name}": getattr(structure, name).offset
        for structure in STRUCTURES
        for name, *_ in structure._fields_
    }
    assert len(ours) > 100
    source, program = tmp_path / "offsets.cpp", tmp_path / "offsets"
    lines = "\n".join(f'printf("{field} %zu\\n", offsetof({field.replace(".", ", ")}));' for field in ours)
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "exlchat.h"\nint main() {{\n{lines}\n}}\n', encoding="utf-8"
    )
    subprocess.run([str(COMPILER), "-I", str(SOURCES), str(source), "-o", str(program)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    theirs = {field: int(offset) for field, offset in (line.split() for line in told.splitlines())}
    assert ours == theirs
