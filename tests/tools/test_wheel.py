"""What `pip install .` puts on a machine, and what `make wheel` adds to it: kernels that need no compiler."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import site
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from exlchat.ext.compiling import FLAGS
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import QUESTIONS, source_abi
from exlchat.ext.record import LIBRARY, BuildRecord, source_hash, write_record
from tests.ext.small_library import compile_plainly

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel built from what git tracks here."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    subprocess.run(["tar", "-c", "-f", out / "tree.tar", "-T", "-"], cwd=ROOT, input=tracked, text=True, check=True)
    subprocess.run(["tar", "-x", "-f", out / "tree.tar", "-C", source], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    built = subprocess.run([*build, str(out), str(source)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_everything_the_program_reads_is_shipped(names: set[str]) -> None:
    package = ROOT / "exlchat"
    data = [*package.glob("models/guide/*"), *package.glob("themes/*.toml"), *package.glob("ui/**/*.tcss")]
    data += package.glob("chat/prompt/formats/*.jinja")
    assert data
    missing = {str(file.relative_to(ROOT)) for file in data} - names
    assert not missing


def test_nothing_else_is_shipped(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"exlchat"}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("wheel_tool", ROOT / "tools" / "wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with every function and a record of the real sources, which no CUDA compiler had to make."""
    folder = tmp_path_factory.mktemp("build")
    answers = {"exl_abi_version": source_abi(), "exl_cuda_version": 13000}
    names = [name for name in (*QUESTIONS, *FUNCTIONS) if name != "exl_error_text"]
    functions = [f'extern "C" int {name}() {{ return {answers.get(name, 0)}; }}' for name in names]
    text = '#include <string.h>\nextern "C" const char *exl_error_text(int code) { return strerror(code); }'
    made = compile_plainly(folder, "\n".join((*functions, text)), "-Wl,--as-needed").rename(folder / LIBRARY)
    write_record(folder, BuildRecord(source_hash(FLAGS), ("sm_89", "sm_90"), "13.0.88", made.stat().st_size))
    return made


LOAD_SHIPPED = """
import sys
from pathlib import Path
from exlchat.ext.build import SHIPPED, ready_library
from exlchat.ext.driver import Driver
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library

cache = Path(sys.argv[1])
path = ready_library(cache, Driver((13, 0), ((9, 0),)))
print(path is not None and path.parent == SHIPPED and SHIPPED.is_relative_to(sys.prefix))
print(open_library(path, FUNCTIONS).cuda)
print(ready_library(cache, Driver((13, 0), ((7, 5),))), ready_library(cache, Driver((12, 4), ((9, 0),))))
"""


def test_a_wheel_with_kernels_is_installed_and_they_are_loaded(tool: ModuleType, library: Path, tmp_path: Path) -> None:
    wheel = tool.make_wheel(library, tmp_path)
    assert re.fullmatch(rf"exlchat-.*-py3-none-manylinux_2_\d+_{platform.machine()}\.whl", wheel.name)
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True)
    # filelock comes from here; the checkout does not, because a folder on PYTHONPATH runs no .pth files.
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(site.getsitepackages())}
    command = [python, "-c", LOAD_SHIPPED, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True", "(13, 0)", "None None"], done.stderr


def test_the_platform_is_the_newest_glibc_that_is_needed(tool: ModuleType) -> None:
    needed = ["libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"]
    tag = tool.tag_of(needed, ["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9", "GLIBC_2.3.4"])
    assert tag == f"manylinux_2_34_{platform.machine()}"
    # pip looks for none that is older than this.
    assert tool.tag_of(needed, ["GLIBC_2.2.5"]) == f"manylinux_2_17_{platform.machine()}"


@pytest.mark.parametrize(
    ("needed", "versions", "said"),
    [
        (["libc.so.6", "libstdc++.so.6"], ["GLIBC_2.17"], r"needs libstdc\+\+\.so\.6, which not every Linux has"),
        (["libcudart.so.13"], ["GLIBC_2.17"], r"needs libcudart\.so\.13"),
        (["libc.so.6"], ["GLIBC_2.17", "GLIBCXX_3.4"], "symbols beside glibc's own"),
        (["libc.so.6"], ["GLIBC_2.17", "GLIBC_ABI_DT_RELR"], "symbols beside glibc's own"),
        (["libc.so.6"], [], "none at all"),
    ],
)
def test_a_library_that_would_not_load_everywhere_is_no_wheel(
    tool: ModuleType, needed: list[str], versions: list[str], said: str
) -> None:
    with pytest.raises(tool.WheelError, match=said):
        tool.tag_of(needed, versions)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "ada"], "'ada' is no compute capability"),
        (["--arch", "9.0", "--nvcc", "/no/such/nvcc"], "/no/such/nvcc cannot be run"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    tool: ModuleType,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NVCC_CCBIN", sys.executable)
    assert tool.main(arguments) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line
