"""The words and options of `exlchat config`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.ui.terminal.exit_codes import ExitCode

_ABOUT = """Settings: what they are, where each value comes from, and how to change them.
The command line beats the environment (EXLCHAT_THEME, EXLCHAT_TEMPERATURE, ...),
and that beats the file settings.toml."""
_EPILOG = """examples:
  exlchat config show
  exlchat config show temperature
  exlchat config set theme exlchat-light
  exlchat config set keys.retry ctrl+t
  exlchat config set sampling.xtc_probability 0.5
  exlchat config unset theme
  EDITOR=nano exlchat config edit

exit codes:
  0 ok   1 error, or the edited file is wrong   2 usage"""


def build_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat config`."""
    parser = Parser("exlchat config", _ABOUT, _EPILOG, "exlchat config COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat config")
    show = command("show", "[KEY]", "show the settings: value, where it comes from, what it means")
    show.add_argument("key", metavar="KEY", nargs="?", help="this setting alone")
    json_option(show)
    edit = command("edit", "", "open the file in $VISUAL or $EDITOR, and check it afterwards")
    where = command("path", "", "say where the file lies")
    change = command("set", "KEY VALUE", "write a value into the file")
    _key(change)
    change.add_argument("value", metavar="VALUE", help="the value; none takes the key out where no value is possible")
    remove = command("unset", "KEY", "take a key out of the file, so that its default holds")
    _key(remove)
    for one in (show, edit, where, change, remove, parser):
        about_group(one)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Carries out the command that was typed."""
    typed = build_parser().parse_args(arguments)
    from exlchat.cli.config.commands import run_config

    return run_config(typed)


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a setting, keys.ACTION, or sampling.CONTROL")
