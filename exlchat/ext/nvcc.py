"""Finds a CUDA compiler that can build for the wanted cards, and says in one line why there is none."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exlchat.ext.errors import BuildError
from exlchat.ext.targets import Capability, dotted, parse_capability

OLDEST = (12, 1)
"""The first CUDA with everything the sources use: C++17 and, for sm_90, dependent launch and `st.async`."""

INSTALL = "pip install 'exlchat[build]'"
INSTALLS = (13, 0)
"""The CUDA series of the compiler that `INSTALL` brings; a driver that is older does not run what it makes."""

_HOST_COMPILER = "g++"


@dataclass(frozen=True, slots=True)
class Nvcc:
    """A compiler that was run and answered.

    Args:
        path: the executable.
        version: the full version, such as `13.0.88`.
        capabilities: what it can make machine code for.
        library_folders: where it must be told to look for the CUDA runtime.
    """

    path: Path
    version: str
    capabilities: frozenset[Capability]
    library_folders: tuple[Path, ...] = ()

    @property
    def series(self) -> tuple[int, int]:
        """`(13, 0)` of `13.0.88`."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def unfit(self, wanted: Iterable[Capability], driver_cuda: tuple[int, int] | None) -> str | None:
        """Why this compiler cannot serve here, or `None` if it can.

        A driver runs what a compiler of its own CUDA major version or an older one made; `None` checks no driver.
        Source: NVIDIA, CUDA Compatibility, "Minor Version Compatibility".
        """
        name = f"nvcc {self.version} ({self.path})"
        if self.series < OLDEST:
            return f"{name} is too old: {dotted(OLDEST)} or newer is needed"
        missing = [capability for capability in sorted(wanted) if capability not in self.capabilities]
        if missing:
            cards = ", ".join(map(dotted, missing))
            older = missing[0] < min(self.capabilities)
            return f"{name} cannot build for compute capability {cards}: it is too {'new' if older else 'old'}"
        if driver_cuda is not None and driver_cuda[0] < self.series[0]:
            return (
                f"{name} makes code for drivers of CUDA {self.series[0]} or newer, "
                f"and the driver here speaks CUDA {dotted(driver_cuda)}: update the driver, "
                f"or install the toolkit of CUDA {driver_cuda[0]}"
            )
        return None


def find_nvcc(
    wanted: Iterable[Capability],
    *,
    driver_cuda: tuple[int, int] | None = None,
    named: Path | None = None,
    places: Iterable[Path] | None = None,
) -> Nvcc:
    """The first compiler that can build for `wanted` and whose code the driver runs; `named` alone if given.

    Args:
        wanted: compute capabilities.
        driver_cuda: the newest CUDA the driver speaks; `None` asks nothing of it.
        named: what the user chose.
        places: executables to try in order, which need not exist; by default `usual_places()`.

    Raises:
        BuildError: there is none, or none fits: what was found, why not, and what to install.
    """
    wanted = frozenset(wanted)
    if host_compiler() is None:
        raise BuildError(
            f"nvcc needs the C++ compiler {os.environ.get('NVCC_CCBIN') or _HOST_COMPILER}, which is not here; "
            "install it (Debian and Ubuntu: apt install g++), or name another in NVCC_CCBIN"
        )
    if named is not None:
        nvcc = ask_nvcc(named)
        reason = nvcc.unfit(wanted, driver_cuda)
        if reason is not None:
            raise BuildError(f"{reason}; leave out the choice of nvcc to take another one")
        return nvcc
    reasons: list[str] = []
    for path in usual_places() if places is None else places:
        if not path.is_file():
            continue
        try:
            nvcc = ask_nvcc(path)
        except BuildError as error:
            reasons.append(str(error))
            continue
        reason = nvcc.unfit(wanted, driver_cuda)
        if reason is None:
            return nvcc
        reasons.append(reason)
    if reasons:
        would_help = driver_cuda is None or driver_cuda[0] >= INSTALLS[0]
        raise BuildError(
            f"no CUDA compiler fits: {'; '.join(dict.fromkeys(reasons))}{f'; or {INSTALL}' if would_help else ''}"
        )
    if driver_cuda is not None and driver_cuda[0] < INSTALLS[0]:
        raise BuildError(
            f"no CUDA compiler (nvcc) is here; the driver speaks CUDA {dotted(driver_cuda)}: install the toolkit of "
            f"CUDA {driver_cuda[0]}, or update the driver to one of CUDA {INSTALLS[0]} and {INSTALL}"
        )
    raise BuildError(f"no CUDA compiler (nvcc) is here; {INSTALL}, or install the CUDA toolkit")


def host_compiler() -> Path | None:
    """The C++ compiler that nvcc works with: what NVCC_CCBIN names, as nvcc itself has it, else g++."""
    found = shutil.which(os.environ.get("NVCC_CCBIN") or _HOST_COMPILER)
    return Path(found) if found is not None else None


def usual_places() -> Iterator[Path]:
    """CUDA_HOME, PATH, /usr/local/cuda, and the wheels of the extra `exlchat[build]`."""
    home = os.environ.get("CUDA_HOME")
    if home:
        yield Path(home) / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from wheel_compilers(_nvidia_folders())


def wheel_compilers(folders: Iterable[Path]) -> Iterator[Path]:
    """nvcc of `nvidia-cuda-nvcc`, newest first: `nvidia/cu13/bin/nvcc`. The wheels for CUDA 12 hold only ptxas."""
    found = [path for folder in folders for path in folder.glob("cu*/bin/nvcc") if path.parents[1].name[2:].isdigit()]
    yield from sorted(found, key=lambda path: int(path.parents[1].name[2:]), reverse=True)


def ask_nvcc(path: Path) -> Nvcc:
    """Runs `path` twice, a few milliseconds each.

    Raises:
        BuildError: it cannot be run, or its answers are not nvcc's.
    """
    version = re.search(r"\bV(\d+\.\d+\.\d+)", _output(path, "--version"))
    codes = re.findall(r"^sm_\d+$", _output(path, "--list-gpu-code"), re.MULTILINE)
    if version is None or not codes:
        raise BuildError(f"{path} does not answer as nvcc does; {INSTALL}, or install the CUDA toolkit")
    # A wheel's nvcc looks for its libraries in lib64, but the wheels put them in lib (seen in 13.0.88).
    beside = path.resolve().parents[1] / "lib"
    folders = (beside,) if (beside / "libcudart_static.a").is_file() else ()
    return Nvcc(path, version[1], frozenset(map(parse_capability, codes)), folders)


def _output(path: Path, option: str) -> str:
    try:
        asked = subprocess.run(
            [path, option], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BuildError(f"{path} cannot be run ({reason}); {INSTALL}, or install the CUDA toolkit") from None
    return asked.stdout if asked.returncode == 0 else ""


def _nvidia_folders() -> list[Path]:
    """The folders of the namespace package `nvidia`, in which NVIDIA's wheels put everything."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
