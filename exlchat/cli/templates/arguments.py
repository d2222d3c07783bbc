"""The words and options of `exlchat template`."""

from __future__ import annotations

import argparse
from pathlib import Path

from exlchat.cli.argument_types import some_id, some_text
from exlchat.cli.parsers import about_group, new_parser

_ABOUT = """The prompt formats (templates) there are; the exact prompt that a conversation
becomes, with its token ids; formats of other programs made into your own."""
_EPILOG = """examples:
  exlchat template list
  exlchat template show                    a little talk, in the guide's format
  exlchat template show --conversation last
  exlchat template show llama-3 -m ~/models/llama-3 --conversation last
  exlchat template show --message 3f2a     what that answer was asked
  exlchat template import ~/presets/Alpaca.json

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


def template_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat template`."""
    parser = new_parser("exlchat template", _ABOUT, _EPILOG, "exlchat template list|show|import …")
    commands = parser.add_subparsers(dest="command", metavar="list|show|import", required=True, prog="exlchat template")
    listing = commands.add_parser("list", description="List the prompt formats: built in, and files of your own.")
    listing.add_argument("--json", action="store_true", help="print JSON")
    show = commands.add_parser(
        "show",
        description="Print the exact prompt of a conversation, with its token ids and where each\n"
        "message begins and ends. No weights are read.",
    )
    show.add_argument(
        "name", metavar="NAME|FILE", nargs="?", help="prompt format (default: the conversation's or the model's)"
    )
    show.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        type=some_text,
        help="whose tokens (default: of the model that answers, else the guide)",
    )
    source = show.add_mutually_exclusive_group()
    source.add_argument("--conversation", metavar="ID", type=some_id, help="a conversation as it would be asked now")
    source.add_argument("--message", metavar="ID", type=some_id, help="an answer: the prompt that it had")
    source.add_argument("--messages", metavar="FILE", type=Path, help="JSON list of role and content; - is stdin")
    show.add_argument("--no-generation-prompt", dest="opening", action="store_false", help="without the model's turn")
    show.add_argument("--json", action="store_true", help="print JSON")
    taking = commands.add_parser(
        "import",
        description="Make a format of an instruction template of text-generation-webui (YAML)\n"
        "or of an instruct preset of SillyTavern (JSON), in the templates folder.",
    )
    taking.add_argument("file", metavar="FILE", type=Path, help="the file")
    taking.add_argument("--name", metavar="NAME", type=some_text, help="what to call it (default: as the file)")
    taking.add_argument("--force", action="store_true", help="replace a format of that name")
    for command in (listing, show, taking):
        command.add_argument("-h", "--help", action="help", help="show this and exit")
    about_group(parser)
    return parser
