"""The words and options of `exlchat presets`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from exlchat.cli.parsers import about_group, add_command, new_parser

_ABOUT = """Sampling presets: ways of drawing tokens, as files. Take one with
`exlchat --preset NAME`, or with /preset NAME in the app. Your own lie in the
folder that `exlchat presets path` names, and go before those that come along."""
_EPILOG = """examples:
  exlchat presets list
  exlchat presets show creative
  exlchat presets import "Midnight Enigma.yaml" Universal-Light.json
  exlchat ask --preset precise "How many moons has Mars?"

exit codes:
  0 ok   1 error   2 usage"""


def presets_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat presets`."""
    parser = new_parser("exlchat presets", _ABOUT, _EPILOG, "exlchat presets COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat presets")
    listing = command("list", "", "list the presets")
    _json(listing)
    show = command("show", "NAME", "show the values of one")
    show.add_argument("name", metavar="NAME", help="the preset, by the name of its file")
    _json(show)
    bring = command("import", "FILE...", "take over presets of other programs")
    bring.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="of text-generation-webui (YAML), KoboldAI or SillyTavern (JSON, text completion), or .toml",
    )
    bring.add_argument("--name", metavar="NAME", help="under this name (of one file)")
    bring.add_argument("--force", action="store_true", help="replace a preset of the same name")
    _json(bring)
    where = command("path", "[NAME]", "say where your presets lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the preset")
    for one in (listing, show, bring, where, parser):
        about_group(one)
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
