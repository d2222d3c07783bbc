"""Makes the wheel with compiled kernels for every supported card: `py3-none-<platform>`, for any Python and torch.

The package is put together in a temporary folder, so that neither the checkout nor what lies about in it gets into the
wheel, and the checkout itself never holds a shipped library. The library comes from the same cache, and the same
build, as `exlchat build-ext --arch all`.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from exlchat import paths
from exlchat.ext.build import SHIPPED, build_library
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import find_nvcc
from exlchat.ext.record import LIBRARY, RECORD
from exlchat.ext.targets import FAT, Targets, parse_capability

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("exlchat", "pyproject.toml", "README.md", "LICENSE")
# What every Linux with a new enough glibc has; PEP 600 and auditwheel's policy for manylinux.
SYSTEM_LIBRARIES = re.compile(r"ld-linux-.*\.so\.\d|lib(c|m|dl|rt|pthread)\.so\.\d")
# The oldest that pip looks for on every kind of machine (PEP 600).
OLDEST_GLIBC = (2, 17)


class WheelError(Exception):
    """The wheel cannot be made: one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; prints the wheel's path on stdout."""
    parser = argparse.ArgumentParser(description="Make a wheel with compiled kernels.")
    parser.add_argument("--arch", metavar="LIST", help="compute capabilities, such as 8.6,8.9 (default: all supported)")
    parser.add_argument("--nvcc", metavar="PATH", type=Path, help="the CUDA compiler (default: the first found)")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=ROOT / "dist", help="default: dist")
    typed = parser.parse_args(arguments)
    try:
        targets = FAT if typed.arch is None else Targets(tuple(sorted(map(parse_capability, typed.arch.split(",")))))
        nvcc = find_nvcc(targets.capabilities, named=typed.nvcc)
        library = build_library(paths.folders().cache, targets, nvcc, on_progress=_Steps().show)
        wheel = make_wheel(library, typed.to)
    except (BuildError, WheelError, ValueError) as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("stopped; run the same again to go on")
        return 130
    _say(f"{', '.join(targets.names)}, nvcc {nvcc.version}, {wheel.stat().st_size / 1e6:.1f} MB")
    sys.stdout.write(f"{wheel}\n")
    return 0


def make_wheel(library: Path, folder: Path) -> Path:
    """The wheel of this checkout with `library` and its record inside, put into `folder`.

    Raises:
        WheelError: the library needs what not every Linux has, or setuptools failed.
    """
    tag = platform_tag(library)
    with tempfile.TemporaryDirectory(prefix="exlchat-wheel-") as temporary:
        source, made = Path(temporary) / "source", Path(temporary) / "made"
        stage(source, library.parent)
        # With a platform named, setuptools marks a package without extension modules `py3-none-<platform>`.
        option = f"--config-settings=--build-option=--plat-name={tag}"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        command = [*pip, "--no-build-isolation", option, f"--wheel-dir={made}", str(source)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise WheelError("pip could not make the wheel; its own words are above")
        (wheel,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def stage(source: Path, build: Path) -> None:
    """Copies what the package is made of to `source`, and the library with its record to its place there."""
    source.mkdir()
    for part in map(ROOT.joinpath, PARTS):
        if part.is_dir():
            shutil.copytree(part, source / part.name, ignore=shutil.ignore_patterns("__pycache__", SHIPPED.name))
        else:
            shutil.copy2(part, source)
    place = source / SHIPPED.relative_to(ROOT)
    place.mkdir()
    for name in (LIBRARY, RECORD):
        shutil.copy2(build / name, place)


def platform_tag(library: Path) -> str:
    """`manylinux_2_35_x86_64` for a library that needs glibc 2.35 on that machine, and nothing else.

    Raises:
        WheelError: it needs a library that is not part of every Linux, or cannot be looked at.
    """
    try:
        said = subprocess.run(
            ["readelf", "--wide", "--dynamic", "--version-info", library], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise WheelError(f"readelf cannot look at {library} ({type(error).__name__}); install binutils") from None
    return tag_of(re.findall(r"Shared library: \[(.+?)\]", said), re.findall(r"Name: (\S+)", said))


def tag_of(needed: Sequence[str], symbol_versions: Sequence[str]) -> str:
    """The platform tag for these shared libraries and versions of their symbols (PEP 600)."""
    foreign = [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)]
    if foreign:
        raise WheelError(f"the library needs {', '.join(foreign)}, which not every Linux has")
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version) for version in symbol_versions]
    if not found or not all(found):
        raise WheelError(f"the library needs symbols beside glibc's own: {', '.join(symbol_versions) or 'none at all'}")
    major, minor = max(OLDEST_GLIBC, *((int(version[1]), int(version[2])) for version in found if version))
    return f"manylinux_{major}_{minor}_{platform.machine()}"


class _Steps:
    """A line for each step of a build."""

    def __init__(self) -> None:
        self._last: BuildProgress | None = None

    def show(self, progress: BuildProgress) -> None:
        if progress != self._last:
            _say(f"{progress.text} ({progress.done} of {progress.total})")
        self._last = progress


def _say(line: str) -> None:
    sys.stderr.write(f"exlchat wheel: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
