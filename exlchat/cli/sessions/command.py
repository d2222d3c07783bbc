"""`exlchat sessions`: conversations on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import get_args

from exlchat import paths
from exlchat.chat.exchange.writing import Format
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.cli.options import loading_options, some_id, some_text, whole
from exlchat.cli.parser import Parser, about_group, json_option
from exlchat.cli.sessions import changing, looking
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines

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
_EXPORT_ABOUT = """Write conversations to a file or to standard output: all branches (jsonl), or
the one that is shown. A file that is there is never replaced unasked."""
_IMPORT_ABOUT = """Read conversations from files of exlchat, ChatGPT or claude.ai (the archive
or conversations.json), Open WebUI, SillyTavern, text-generation-webui, llm
(logs.db), exllamav3's chat, exui, aichat, ShareGPT, or of OpenAI's messages."""

_Add = Callable[..., argparse.ArgumentParser]


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat sessions", _ABOUT, _EPILOG, "exlchat sessions COMMAND [options]")
    about_group(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", prog="exlchat sessions"
    )

    def add(name: str, about: str, arguments: str = "", description: str | None = None) -> argparse.ArgumentParser:
        prog = f"exlchat sessions {name}"
        usage = f"{prog} {arguments}".strip()
        made = commands.add_parser(name, help=about, prog=prog, description=description or about, usage=usage)
        about_group(made)
        return made

    _looking(add)
    _arranging(add)
    _changing(add)
    _keeping(add)
    _exchange(add)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Carries one command out; every failure is one line on stderr and an exit code."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    try:
        where = paths.folders().conversations
        paths.ensure_folder(where.parent)
        if typed.command == "check":
            # What is damaged may not open as a store.
            return looking.run_check(where, typed)
        with closing(ConversationStore(where, or_read=True)) as store:
            return _COMMANDS[typed.command](store, typed)
    except StoreError as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _run_reproduce(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    # The others load no model.
    from exlchat.cli.sessions.reproducing import run_reproduce

    return run_reproduce(store, typed)


def _run_exchange(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    # The others need none of the foreign formats.
    from exlchat.cli.sessions.exchange import run_exchange

    return run_exchange(store, typed)


_COMMANDS: dict[str, Callable[[ConversationStore, argparse.Namespace], ExitCode]] = {
    "list": looking.run_list,
    "show": looking.run_show,
    "search": looking.run_search,
    "stats": looking.run_stats,
    "rm": changing.run_rm,
    "restore": changing.run_restore,
    "rename": changing.run_rename,
    "tag": changing.run_tag,
    "pin": changing.run_pin,
    "archive": changing.run_archive,
    "pin-message": changing.run_pin_message,
    "purge": changing.run_purge,
    "reproduce": _run_reproduce,
    "edit": changing.run_edit,
    "choose": changing.run_choose,
    "branch": changing.run_branch,
    "cut": changing.run_cut,
    "undo": changing.run_undo,
    "export": _run_exchange,
    "import": _run_exchange,
}


def _looking(add: _Add) -> None:
    listing = add("list", "list conversations, pinned ones first", "[options]")
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--archived", dest="which", action="store_const", const="archived", help="those in the archive")
    which.add_argument("--deleted", dest="which", action="store_const", const="deleted", help="those that were deleted")
    listing.set_defaults(which="kept")
    listing.add_argument("--tag", metavar="TAG", help="only those with this tag")
    json_option(listing)
    show = add("show", "print the branch of a conversation that is shown", "ID [options]")
    _conversation(show)
    show.add_argument("--tree", action="store_true", help="list all branches, a line for each message")
    json_option(show)
    search = add("search", "find words in messages, thoughts and titles", "TEXT [options]")
    told = "words, or how they begin; on:2026-03, before:, after: and tag: narrow it"
    search.add_argument("text", metavar="TEXT", nargs="+", help=told)
    search.add_argument("--limit", metavar="N", type=whole(1, 10_000), default=20, help="most hits (default: 20)")
    json_option(search)
    json_option(add("stats", "count what there is", "[options]"))


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
    json_option(check)


def _exchange(add: _Add) -> None:
    export = add("export", "write conversations to a file", "ID... [options]", _EXPORT_ABOUT)
    which = export.add_argument_group("conversations")
    which.add_argument("ids", metavar="ID", nargs="*", help="beginning of a conversation's id, or last")
    which.add_argument("--all", action="store_true", help="all that are not deleted, those in the archive too")
    where = export.add_argument_group("file")
    where.add_argument(
        "--format",
        metavar="NAME",
        choices=get_args(Format),
        help="jsonl (loses nothing), md, html, openai or sillytavern (default: as the file's name ends, else jsonl)",
    )
    where.add_argument("-o", "--output", metavar="FILE", default="-", help="- is standard output, the default")
    where.add_argument("--force", action="store_true", help="replace the file if it is there")
    importing = add("import", "read conversations from files", "FILE...", _IMPORT_ABOUT)
    importing.add_argument("files", metavar="FILE", nargs="+", help="their kind is told by what they hold")


def _conversation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=some_id, help="beginning of a conversation's id, or last")


def _message(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", metavar="MESSAGE", type=some_id, help="beginning of a message's id")
