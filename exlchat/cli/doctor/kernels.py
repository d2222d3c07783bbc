"""The CUDA kernels in the doctor's report: what could compile them, whether they are, and what they take on disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from exlchat.cli.doctor.finding import Finding
from exlchat.ext.build import builds, ready_library
from exlchat.ext.driver import Driver, ask_driver
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import find_nvcc, host_compiler
from exlchat.ext.targets import OLDEST, Capability, dotted

WITHOUT = "run without them, slower: --no-ext"


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


def kernel_findings(kernels: KernelFacts) -> Iterator[Finding]:
    """The lines on a machine with a card: compiler, each kind of card, cache."""
    ready = dict(kernels.ready)
    wanted = [card for card in kernels.cards if card >= OLDEST]
    if kernels.problem is None:
        yield Finding("ok", "nvcc", kernels.compiler)
    else:
        spared = bool(wanted) and all(card in ready for card in wanted)
        yield Finding("warn" if spared else "missing", "nvcc", kernels.problem)
    for card in kernels.cards:
        yield _card(card, ready.get(card), can_build=kernels.problem is None)
    if kernels.builds:
        count = "1 build" if kernels.builds == 1 else f"{kernels.builds} builds"
        yield Finding("ok", "kernel cache", f"{count}, {kernels.size / 1e6:.1f} MB in {kernels.folder}")


def _card(card: Capability, library: Path | None, *, can_build: bool) -> Finding:
    name = f"compute capability {dotted(card)}"
    if card < OLDEST:
        return Finding("missing", "CUDA kernels", f"{name} is too old, they need {dotted(OLDEST)}", WITHOUT)
    if library is not None:
        return Finding("ok", "CUDA kernels", f"ready for {name} ({library})")
    if can_build:
        text = f"not compiled yet for {name}; the first start does it and takes about a minute longer"
        return Finding("warn", "CUDA kernels", text, "compile them now: exlchat build-ext")
    return Finding("missing", "CUDA kernels", f"none for {name}, and nvcc is missing", f"see nvcc; or {WITHOUT}")


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
