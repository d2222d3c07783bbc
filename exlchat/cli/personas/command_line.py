"""The words and options of `exlchat personas`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from exlchat.chat.personas.card_writing import CARD_FILES
from exlchat.cli.argument_types import some_text
from exlchat.cli.parsers import about_group, add_command, new_parser

_ABOUT = """Personas: who is speaking, as files. A persona has a system prompt and, if you
like, a greeting, examples, sampling values and a lorebook. Character cards are
imported and exported. Your own personas lie in the folder that
`exlchat personas path` names, and go before those that come along."""
_EPILOG = """examples:
  exlchat personas list
  exlchat personas show coder
  exlchat personas new butler
  exlchat personas import seraphina.png
  exlchat personas export seraphina card.png

exit codes:
  0 ok   1 error   2 usage"""


def personas_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat personas`."""
    parser = new_parser("exlchat personas", _ABOUT, _EPILOG, "exlchat personas COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat personas")
    listing = command("list", "", "list the personas")
    _json(listing)
    show = command("show", "NAME", "show one, with its texts as a conversation gets them")
    _name(show)
    show.add_argument("--user", metavar="NAME", help="what you are called (default: user_name in settings.toml)")
    _json(show)
    new = command("new", "NAME", "write a new persona file to fill in")
    new.add_argument("name", metavar="NAME", type=some_text, help="its name, of which that of its file is made")
    new.add_argument("--from", dest="base", metavar="NAME", help="begin with a copy of this persona")
    bring = command("import", "FILE...", "take over cards, characters and roles of other programs")
    bring.add_argument("files", metavar="FILE", nargs="+", type=Path, help="PNG, JSON, CHARX, YAML, .md or .toml")
    bring.add_argument("--name", metavar="NAME", help="under this name (of one file)")
    bring.add_argument("--lorebook", metavar="FILE", type=Path, help="with the lorebook of this JSON file")
    bring.add_argument("--force", action="store_true", help="replace a persona of the same name")
    _json(bring)
    send = command("export", "NAME FILE", "write a persona as a character card")
    _name(send)
    send.add_argument("file", metavar="FILE", type=Path, help="its ending decides: .png, .json, .charx or .toml")
    send.add_argument(
        "--card", metavar="N", type=int, choices=(2, 3), help="version of the card in .json and .charx: 2 or 3"
    )
    send.add_argument("--picture", metavar="FILE.png", type=Path, help="the picture to put the card into")
    send.add_argument("--force", action="store_true", help="replace FILE")
    where = command("path", "[NAME]", "say where your personas lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the persona")
    for one in (listing, show, new, bring, send, where, parser):
        about_group(one)
    return parser


def card_kind(file: Path) -> str | None:
    """What kind of file an export writes, by the ending; `None` for one that is not known."""
    ending = file.suffix.lower().removeprefix(".")
    return ending if ending in CARD_FILES else None


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the persona, by the name of its file or its own")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
