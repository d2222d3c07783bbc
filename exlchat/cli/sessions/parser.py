"""The words and options of `exlchat sessions`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable

from exlchat.cli.argument_types import some_id, some_text, whole
from exlchat.cli.option_groups import loading_options
from exlchat.cli.parsers import Parser, about_group

_ABOUT = """List, search, change, check, export and import conversations. ID is the
beginning of a conversation's id, or the word last; MESSAGE the beginning of a
message's id, as show prints it."""
_EPILOG = """examples:
  exlchat sessions search "tomato soup"
  exlchat sessions show last
  exlchat sessions edit 3f2a "What I meant was this."
  exlchat sessions undo last
  exlchat sessions list --json | jq -r '.[].title'

exit codes:
  0 ok   1 error, check found something, or reproduce got another answer
  2 usage   130 stopped by ctrl+c"""
EXCHANGE = "exlchat.cli.sessions.exchange"
"""The module with `add_parsers` and `run` of export and import."""

_Add = Callable[..., argparse.ArgumentParser]


def sessions_parser() -> argparse.ArgumentParser:
    """The options of `exlchat sessions COMMAND`."""
    parser = Parser("exlchat sessions", _ABOUT, _EPILOG, "exlchat sessions COMMAND [options]")
    about_group(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", prog="exlchat sessions"
    )

    def add(name: str, about: str, arguments: str = "") -> argparse.ArgumentParser:
        prog = f"exlchat sessions {name}"
        made = commands.add_parser(
            name, help=about, prog=prog, description=about, epilog=None, usage=f"{prog} {arguments}".strip()
        )
        about_group(made)
        return made

    _looking(add)
    _arranging(add)
    _changing(add)
    _keeping(add)
    if has_exchange():
        importlib.import_module(EXCHANGE).add_parsers(commands)
    return parser


def has_exchange() -> bool:
    """Whether this program can export and import."""
    return importlib.util.find_spec(EXCHANGE) is not None


def _looking(add: _Add) -> None:
    listing = add("list", "list conversations, pinned ones first", "[options]")
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--archived", dest="which", action="store_const", const="archived", help="those in the archive")
    which.add_argument("--deleted", dest="which", action="store_const", const="deleted", help="those that were deleted")
    listing.set_defaults(which="kept")
    listing.add_argument("--tag", metavar="TAG", help="only those with this tag")
    _json(listing)
    show = add("show", "print the branch of a conversation that is shown", "ID [options]")
    _conversation(show)
    show.add_argument("--tree", action="store_true", help="list all branches, a line for each message")
    _json(show)
    search = add("search", "find words in messages, thoughts and titles", "TEXT [options]")
    search.add_argument("text", metavar="TEXT", nargs="+", help="words, or beginnings of words; all must be there")
    search.add_argument("--limit", metavar="N", type=whole(1, 10_000), default=20, help="most hits (default: 20)")
    _json(search)
    _json(add("stats", "count what there is", "[options]"))


def _arranging(add: _Add) -> None:
    for name, about in (("rm", "delete conversations; restore brings them back for 30 days"), ("restore", "undelete")):
        made = add(name, about, "ID...")
        made.add_argument("ids", metavar="ID", nargs="+", type=some_id, help="conversations")
    rename = add("rename", "give a conversation a title", "ID TITLE")
    _conversation(rename)
    rename.add_argument("title", metavar="TITLE", help="an empty one brings back the first line")
    tag = add("tag", "add tags to a conversation, or take them away", "ID TAG... [options]")
    _conversation(tag)
    tag.add_argument("tags", metavar="TAG", nargs="+", help="tags")
    tag.add_argument("--remove", action="store_true", help="take them away")
    for name, about in (("pin", "keep a conversation at the head of the list"), ("archive", "take it off the list")):
        made = add(name, about, "ID [options]")
        _conversation(made)
        made.add_argument("--off", action="store_true", help="no longer")

    message = add(
        "pin-message", "have the model go on seeing a message when older ones are left out", "MESSAGE [options]"
    )
    _message(message)
    message.add_argument("--off", action="store_true", help="no longer")
    purge = add("purge", "remove for good what was deleted: conversations, and what was cut out of others", "--yes")
    purge.add_argument("--yes", action="store_true", help="do it; without this only say what there is to remove")


def _changing(add: _Add) -> None:
    edit = add("edit", "put a changed copy beside a message and show that", "MESSAGE [TEXT] [options]")
    _message(edit)
    edit.add_argument("text", metavar="TEXT", nargs="?", help="the new text (default: standard input)")
    edit.add_argument("--carry", action="store_true", help="let copies of what followed stand below it too")
    choose = add("choose", "show a message: an alternative, or another branch", "MESSAGE")
    _message(choose)
    branch = add("branch", "begin a new conversation with the messages up to one", "MESSAGE")
    _message(branch)
    cut = add("cut", "delete a message and everything below it", "MESSAGE")
    _message(cut)
    undo = add("undo", "take back the last change of a conversation", "ID [options]")
    _conversation(undo)
    undo.add_argument("--redo", action="store_true", help="do again what was taken back")


def _keeping(add: _Add) -> None:
    reproduce = add(
        "reproduce", "have an answer given again by its record, and compare the tokens", "MESSAGE [options]"
    )
    _message(reproduce)
    model = reproduce.add_argument_group("model")
    model.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        type=some_text,
        help="folder of the model that answered (default: as recorded)",
    )
    loading_options(model)
    check = add("check", "look for what is wrong with the database", "[options]")
    check.add_argument("--repair", action="store_true", help="copy the database, then mend what can be mended")
    _json(check)


def _conversation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=some_id, help="beginning of a conversation's id, or last")


def _message(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", metavar="MESSAGE", type=some_id, help="beginning of a message's id")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
