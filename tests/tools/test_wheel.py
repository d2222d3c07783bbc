"""What `pip install .` puts on a machine: without the model, the themes and the styles it would not start."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
    assert data
    missing = {str(file.relative_to(ROOT)) for file in data} - names
    assert not missing


def test_nothing_else_is_shipped(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"exlchat"}
