"""How every command line of this program is parsed: argparse, with its mistakes and its help in our manner."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from exlchat import __version__
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_text
from exlchat.untrusted.text import one_line, visible

_WIDTH = 80
_LONGEST_MISTAKE = 1000


class Parser(argparse.ArgumentParser):
    """argparse with mistakes answered in one line instead of the whole usage."""

    def __init__(self, prog: str, description: str, epilog: str | None = None, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH, max_help_position=24),
            allow_abbrev=False,
            add_help=False,
        )

    def parse_words(self, arguments: Sequence[str]) -> argparse.Namespace:
        """As `parse_args` of a parser whose one positional is `words`, but for options that stand between them."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        typed = self.parse_intermixed_args(arguments[:at])
        typed.words = [*typed.words, *arguments[at + 1 :]]
        return typed

    def error(self, message: str) -> NoReturn:
        """Names the mistake and where the options are listed."""
        complain(f"{one_line(visible(message), _LONGEST_MISTAKE)} ({self.prog} --help lists the options)", self.prog)
        raise SystemExit(ExitCode.USAGE)

    def _print_message(self, message: str, file: object = None) -> None:
        """By this argparse writes help and version, to standard output."""
        del file
        if code := print_text(message):
            raise SystemExit(code)


def add_command(
    commands: argparse._SubParsersAction[Parser], program: str, name: str, arguments: str, about: str
) -> Parser:
    """A command of a program that has several.

    Args:
        commands: of the program.
        program: as it is typed, as in "exlchat personas".
        name: of the command.
        arguments: what its usage line says after the name; may be empty.
        about: what it does, in a line.
    """
    prog = f"{program} {name}"
    usage = " ".join(part for part in (prog, arguments, "[options]") if part)
    return commands.add_parser(name, help=about, prog=prog, description=about, usage=usage)


def about_group(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("about")
    group.add_argument("-h", "--help", action="help", help="show this and exit")
    group.add_argument(
        "--version", action="version", version=f"exlchat {__version__}", help="show the version and exit"
    )


def json_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
