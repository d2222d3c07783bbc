"""`exlchat build-ext`: compiles the CUDA kernels ahead of time. Needs no GPU, and never imports torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.ext.build import build_library
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.driver import ask_driver, hidden_cards
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc, find_nvcc
from exlchat.ext.targets import OLDEST, Targets, dotted, targets_for
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_lines


@dataclass(frozen=True, slots=True)
class BuildExtOptions:
    """One `exlchat build-ext`.

    Args:
        targets: what to build for; `None` is the cards of this machine.
        force: build even what is there.
        nvcc: the compiler to use; `None` looks for one.
    """

    targets: Targets | None = None
    force: bool = False
    nvcc: Path | None = None


def run_build_ext(options: BuildExtOptions) -> ExitCode:
    """Builds, tells on stderr how far it is, and prints on stdout where the library lies and how long it took."""
    lines = ErrorLines()
    progress = _Progress(lines)
    try:
        targets, nvcc = _choose(options, lines)
        library = build_library(paths.folders().cache, targets, nvcc, force=options.force, on_progress=progress.show)
    except BuildError as error:
        lines.say(str(error))
        return ExitCode.ERROR
    except KeyboardInterrupt:
        lines.say("stopped; what was built before is untouched")
        return ExitCode.STOPPED
    finally:
        lines.clear()
    made = f"built in {progress.seconds:.0f} s" if progress.compiled else "built before (--force builds it again)"
    size = library.stat().st_size / 1e6
    return print_lines([str(library), f"{', '.join(targets.names)}, {size:.1f} MB, nvcc {nvcc.version}; {made}"])


def _choose(options: BuildExtOptions, lines: ErrorLines) -> tuple[Targets, Nvcc]:
    """What to build, and with what.

    Raises:
        BuildError: there is no card to build for, or no compiler that fits.
    """
    if options.targets is not None:
        targets_for(options.targets.capabilities)
        # The library may be for another machine, so this one's driver does not matter.
        return options.targets, find_nvcc(options.targets.capabilities, named=options.nvcc)
    driver = ask_driver()
    if not driver.cards:
        reason = hidden_cards() or "no NVIDIA card answers here; `exlchat doctor` says more"
        raise BuildError(f"{reason}; or name what to build for: --arch 8.9 (RTX 40), 8.6 (RTX 30), or all")
    fit = [card for card in driver.cards if card >= OLDEST]
    for card in sorted(set(driver.cards).difference(fit)):
        lines.say(
            f"a card of compute capability {dotted(card)} is left out: the kernels need {dotted(OLDEST)} or newer"
        )
    targets = targets_for(fit or driver.cards)
    return targets, find_nvcc(targets.capabilities, driver_cuda=driver.cuda, named=options.nvcc)


class _Progress:
    """A moving line on a terminal; elsewhere a line whenever a step has ended or something else begins."""

    def __init__(self, lines: ErrorLines) -> None:
        self._lines = lines
        self._began = time.monotonic()
        self._last: BuildProgress | None = None
        self.compiled = False
        self.seconds = 0.0

    def show(self, progress: BuildProgress) -> None:
        """Takes what the build reports."""
        if not progress.waiting and not self.compiled:
            self._began, self.compiled = time.monotonic(), True
        self.seconds = time.monotonic() - self._began
        steps = "" if progress.waiting else f"{progress.done} of {progress.total} steps, {self.seconds:.0f} s: "
        if self._lines.live:
            self._lines.show(f"{steps}{progress.text}")
        elif progress != self._last:
            self._lines.say(f"{steps}{progress.text}")
        self._last = progress
