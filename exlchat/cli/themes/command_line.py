"""The words and options of `exlchat themes`."""

from __future__ import annotations

import argparse
from functools import partial

from exlchat.cli.parsers import about_group, add_command, new_parser

_ABOUT = """Themes: the colours of the chat, as files. On a terminal with colours each is
shown in its own. Take one with `exlchat --theme NAME`, or with /theme NAME in
the app. Your own lie in the folder that `exlchat themes path` names; the app
shows every change of theirs as soon as it is saved."""
_EPILOG = """examples:
  exlchat themes list
  exlchat themes show moss
  exlchat themes new dusk --from tide
  exlchat --theme dusk

exit codes:
  0 ok   1 error   2 usage"""


def themes_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat themes`; without a command it is `list`."""
    parser = new_parser("exlchat themes", _ABOUT, _EPILOG, "exlchat themes [COMMAND] [options]")
    parser.set_defaults(command="list", json=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    command = partial(add_command, commands, "exlchat themes")
    listing = command("list", "", "list the themes, each in its own colours")
    _json(listing)
    show = command("show", "NAME", "show one, and every colour of it")
    show.add_argument("name", metavar="NAME", help="the theme")
    _json(show)
    where = command("path", "[NAME]", "say where your themes lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the theme")
    new = command("new", "NAME", "write a new theme file to fill in")
    new.add_argument("name", metavar="NAME", help="its name: lower-case letters, digits and hyphens")
    new.add_argument("--from", dest="base", metavar="NAME", help="begin with a copy of this theme")
    for one in (listing, show, where, new, parser):
        about_group(one)
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
