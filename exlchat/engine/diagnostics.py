"""What torch and the kernels find on this machine, as plain values for `exlchat doctor`."""

from __future__ import annotations

import subprocess
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.ext.build import builds, ready_library
from exlchat.ext.driver import Driver, ask_driver
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import find_nvcc, host_compiler
from exlchat.ext.targets import OLDEST, Capability

if TYPE_CHECKING:
    import torch

_TRIAL_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One CUDA device as torch sees it. Bytes of device memory; `capability` is (major, minor).

    Args:
        host_rate: bytes a second that it gets out of the machine's memory; `None` where that could not be tried.
    """

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    host_rate: float | None = None


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The installed torch.

    Args:
        version: `None` when it cannot be imported; `problem` then says why.
        cuda: the CUDA version it was built for, `None` for a build without CUDA.
        gpus: the devices it can use now; empty without CUDA, without a card, or with a driver it rejects.
        architectures: the compute capabilities it has code for, such as `sm_90`.
        problem: the first line of what torch said when it could not start CUDA.
        together: of several devices, whether what one sends to another arrives; tried.
    """

    version: str | None
    cuda: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    architectures: tuple[str, ...] = ()
    problem: str | None = None
    together: bool | None = None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What there is for the CUDA kernels.

    Args:
        compiler: nvcc and the C++ compiler behind it, with versions; empty when `problem` says why none would do.
        problem: what `find_nvcc` said.
        cards: compute capability of each kind of card that the driver shows to this process.
        ready: the library that is there for a kind of card; those without one are left out.
        builds: how many lie in the cache.
        size: bytes that they take.
        folder: where that is.
    """

    compiler: str = ""
    problem: str | None = None
    cards: tuple[Capability, ...] = ()
    ready: tuple[tuple[Capability, Path], ...] = ()
    builds: int = 0
    size: int = 0
    folder: Path | None = None


def probe_torch() -> TorchFacts:
    """Imports torch and asks it. Never raises: a broken installation is a fact too."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return TorchFacts(version=None, problem=_first_line(error))
    if torch.version.cuda is None:
        return TorchFacts(version=torch.__version__)
    gpus: tuple[GpuFacts, ...] = ()
    problem, together = None, None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            gpus = tuple(_gpu(index) for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
            architectures = tuple(torch.cuda.get_arch_list())
        except RuntimeError as error:
            architectures, problem = (), _first_line(error)
    if len(gpus) > 1:
        from exlchat.engine.cards.split import reach_each_other

        # Where a card has no room for the trial, nothing is known.
        with suppress(RuntimeError):
            together = reach_each_other([torch.device("cuda", index) for index in range(len(gpus))])
    if problem is None and not gpus and said:
        problem = str(said[0].message).splitlines()[0]
    return TorchFacts(torch.__version__, torch.version.cuda, gpus, architectures, problem, together)


def ask_kernels(cache: Path) -> KernelFacts:
    """Looks, without torch and without building; some ten milliseconds, most of them nvcc's."""
    driver = ask_driver()
    cards = tuple(sorted(set(driver.cards)))
    compiler, problem = "", None
    try:
        nvcc = find_nvcc((card for card in cards if card >= OLDEST), driver_cuda=driver.cuda)
        compiler = f"{nvcc.version} ({nvcc.path}), with {_host()}"
    except BuildError as error:
        problem = str(error)
    found = [(card, ready_library(cache, Driver(driver.cuda, (card,)))) for card in cards]
    folders = builds(cache)
    return KernelFacts(
        compiler=compiler,
        problem=problem,
        cards=cards,
        ready=tuple((card, library) for card, library in found if library is not None),
        builds=len(folders),
        size=sum(_size(file) for folder in folders for file in folder.iterdir()),
        folder=cache / "ext",
    )


def _gpu(index: int) -> GpuFacts:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    rate = _host_rate(torch.device("cuda", index))
    return GpuFacts(properties.name, (properties.major, properties.minor), total, free, rate)


def _host_rate(device: torch.device) -> float | None:
    import torch

    from exlchat.engine.cards.host_memory import HostMemory

    memory = HostMemory(device)
    # Where a card or the machine has no room for the trial, nothing is known.
    with suppress(RuntimeError, MemoryError, OSError):
        memory.hold([torch.zeros(_TRIAL_BYTES, dtype=torch.uint8, device=device)])
        return memory.rate
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _host() -> str:
    """The C++ compiler with its version; `find_nvcc` has made sure that there is one."""
    path = host_compiler()
    version = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run([str(path), "-dumpfullversion"], capture_output=True, text=True, timeout=30, check=False)
        version = asked.stdout.strip() if asked.returncode == 0 else ""
    return f"g++ {version} ({path})" if version else str(path)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
