"""`exlchat pull`: a model from the hub into the library."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from exlchat.app.library.download import fetch, is_there
from exlchat.app.library.hub import PullError, look_up, parse_name, tell_warnings
from exlchat.app.library.listing import size_text
from exlchat.app.library.pulled import folder_for
from exlchat.cli.options import some_text
from exlchat.cli.parser import Parser, about_group
from exlchat.llm.info import ModelError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_lines

_ABOUT = """Fetch a model from Hugging Face into the library, and see that it is whole:
*.safetensors, *.json, *.txt, *.model and *.jinja files, never pickles or code.
Of EXL2 models each size is often a branch of its own: name it after an @.
Stop at any time; the same command goes on. Standard output says where the
model lies; progress goes to standard error."""
_EPILOG = """examples:
  exlchat pull turboderp/Llama-3.2-1B-Instruct-exl2@4.0bpw
  exlchat turboderp/Llama-3.2-1B-Instruct-exl2@4.0bpw     chat with it then

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_TELL_EVERY_SECONDS = 10.0


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat pull", _ABOUT, _EPILOG, "exlchat pull ORG/NAME[@REVISION] [options]")
    model = parser.add_argument_group("model")
    model.add_argument("name", metavar="ORG/NAME[@REVISION]", help="a model on Hugging Face; a branch, tag or commit")
    model.add_argument(
        "--include",
        metavar="GLOB",
        type=some_text,
        action="append",
        default=[],
        help="only files whose names match, such as '*.json' (may be repeated)",
    )
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Fetches a model, with progress on stderr; prints where it lies. ctrl+c ends at once, and nothing is lost."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    shown = _Progress(lines)

    def stopped() -> None:
        lines.say("stopped; the same command goes on from here")

    try:
        name = parse_name(typed.name)
        with ctrl_c_ends_at_once(before=stopped):
            tell_warnings(lines.say)
            folder = folder_for(name.repository, name.revision)
            model = look_up(name, typed.include)
            if is_there(model):
                lines.say(f"{name} is there already")
            else:
                lines.say(f"{name}: {len(model.files)} files, {size_text(model.bytes)}, into {folder}")
                fetch(model, shown.show)
            lines.clear()
            from exlchat.engine.weights.check import check

            check(folder)
            advice = _advice(folder)
    except (PullError, ModelError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    finally:
        lines.clear()
    for line in advice:
        lines.say(line)
    return print_lines([str(folder), f"exlchat {name}"])


def _advice(folder: Path) -> list[str]:
    """Where to ask what a model of other formats than EXL2 could be."""
    from exlchat.engine.formats.inventory import describe_format
    from exlchat.engine.weights.checkpoint import Checkpoint

    kind = describe_format(Checkpoint(folder))
    if kind.startswith("EXL2"):
        return []
    return [f"it is {kind}; exlchat convert {shlex.quote(str(folder))} --advise says which EXL2 bits a card holds"]


class _Progress:
    """A moving line on a terminal, a line now and then elsewhere."""

    def __init__(self, lines: ErrorLines) -> None:
        self._lines = lines
        self._began = self._told = time.monotonic()
        self._first = -1

    def show(self, what: str, done: int, total: int) -> None:
        """Takes what is done, and bytes."""
        now = time.monotonic()
        if self._first < 0:
            self._first, self._began = done, now
        if not self._lines.live and now - self._told < _TELL_EVERY_SECONDS:
            return
        self._told = now
        rate = (done - self._first) / (now - self._began) if now > self._began else 0.0
        speed = f", {size_text(int(rate))}/s" if what == "fetching" and rate > 0 else ""
        percent = 100 * done // max(total, 1)
        line = f"{what}: {size_text(done)} of {size_text(total)}, {percent} %{speed}"
        (self._lines.show if self._lines.live else self._lines.say)(line)
