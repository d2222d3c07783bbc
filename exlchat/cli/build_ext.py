"""`exlchat build-ext`: compiles the CUDA kernels ahead of time. Needs no GPU, and never imports torch."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from exlchat import paths
from exlchat.cli.parser import Parser, about_group
from exlchat.ext.build import build_library
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.driver import ask_driver, hidden_cards
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc, find_nvcc
from exlchat.ext.targets import FAT, OLDEST, Targets, dotted, parse_capability, targets_for
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_lines

_ABOUT = """Compile the CUDA kernels for the cards of this machine, or for those named.
Without this the first start on a card does it. It takes about a minute, needs
nvcc and g++ (pip install 'exlchat[build]' brings nvcc) and no GPU. Standard
output says where the library lies; progress goes to standard error."""
_EPILOG = """examples:
  exlchat build-ext                  for the cards of this machine
  exlchat build-ext --arch 8.6,8.9   for RTX 30 and RTX 40 cards
  exlchat build-ext --arch all       for every supported card, as a wheel has it

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat build-ext", _ABOUT, _EPILOG, "exlchat build-ext [options]")
    build = parser.add_argument_group("build")
    build.add_argument(
        "--arch",
        metavar="LIST",
        type=_targets,
        help="compute capabilities, such as 8.6,8.9 or 86,89, or all (default: the cards here)",
    )
    build.add_argument("--force", action="store_true", help="build again what is there")
    build.add_argument(
        "--nvcc", metavar="PATH", type=_program, help="the CUDA compiler to use (default: the first found)"
    )
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Builds, tells on stderr how far it is, and prints on stdout where the library lies and how long it took."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    progress = _Progress(lines)
    try:
        targets, nvcc = _choose(typed.arch, typed.nvcc, lines)
        library = build_library(paths.folders().cache, targets, nvcc, force=typed.force, on_progress=progress.show)
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


def _targets(text: str) -> Targets:
    """Compute capabilities with commas between them, or `all`."""
    if text == "all":
        return FAT
    try:
        capabilities = {parse_capability(part) for part in text.split(",")}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Targets(tuple(sorted(capabilities)))


def _program(text: str) -> Path:
    """As a shell would find it: a bare name on PATH, anything else as a file."""
    path = paths.expanded(text)
    return Path(shutil.which(text) or path).absolute()


def _choose(wanted: Targets | None, named: Path | None, lines: ErrorLines) -> tuple[Targets, Nvcc]:
    """What to build, and with what.

    Args:
        wanted: what to build for; `None` is the cards of this machine.
        named: the compiler to use; `None` looks for one.
        lines: where to say what is left out.

    Raises:
        BuildError: there is no card to build for, or no compiler that fits.
    """
    if wanted is not None:
        targets_for(wanted.capabilities)
        # The library may be for another machine, so this one's driver does not matter.
        return wanted, find_nvcc(wanted.capabilities, named=named)
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
    return targets, find_nvcc(targets.capabilities, driver_cuda=driver.cuda, named=named)


class _Progress:
    """A moving line on a terminal; elsewhere a line whenever a step has ended or something else begins."""

    def __init__(self, lines: ErrorLines) -> None:
        self._lines = lines
        self._began = time.monotonic()
        self._last: BuildProgress | None = None
        self.compiled = False
        self.seconds = 0.0

    def show(self, progress: BuildProgress) -> None:
        if not progress.waiting and not self.compiled:
            self._began, self.compiled = time.monotonic(), True
        self.seconds = time.monotonic() - self._began
        steps = "" if progress.waiting else f"{progress.done} of {progress.total} steps, {self.seconds:.0f} s: "
        if self._lines.live:
            self._lines.show(f"{steps}{progress.text}")
        elif progress != self._last:
            self._lines.say(f"{steps}{progress.text}")
        self._last = progress
