"""`exlchat sessions export` and `exlchat sessions import`: conversations into files and out of them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args

from exlchat import paths
from exlchat.chat.conversation import ConversationSummary
from exlchat.chat.database import StoreError
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.reading import NAMES, Imported, read
from exlchat.chat.exchange.writing import Format, written
from exlchat.chat.tree import ConversationTree
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.headless_output import ErrorLines, abandon, print_report

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_STDOUT = "-"
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".json": "openai",
}


class TreeStore(Protocol):
    """What is needed of the store. Every method raises `StoreError`."""

    def list_conversations(self) -> Sequence[ConversationSummary]:
        """Newest first."""

    def read_tree(self, conversation_id: str) -> ConversationTree:
        """A conversation with all its branches."""

    def write_tree(self, tree: ConversationTree) -> str:
        """Puts it on disk in one transaction and returns its id; new ids where those of the tree are taken."""


def add_parsers(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `export` and `import`. What they parse is for `run`, which looks at `exchange`."""
    export = subparsers.add_parser("export", help="write conversations to a file", description=_EXPORT_ABOUT)
    export.set_defaults(exchange="export")
    which = export.add_argument_group("conversations")
    which.add_argument("ids", metavar="ID", nargs="*", help="ids or their beginnings, as the list shows them")
    which.add_argument("--all", action="store_true", help="all conversations that the list shows")
    where = export.add_argument_group("file")
    where.add_argument(
        "--format",
        choices=get_args(Format),
        help="jsonl (lossless), md, html, or openai (messages); else by the file's ending, else jsonl",
    )
    where.add_argument("-o", "--output", metavar="FILE", default=_STDOUT, help="the file; - is standard output")
    where.add_argument("--force", action="store_true", help="replace the file if it is there")
    importing = subparsers.add_parser("import", help="read conversations from files", description=_IMPORT_ABOUT)
    importing.set_defaults(exchange="import")
    importing.add_argument("files", metavar="FILE", nargs="+", help="their kind is told by what they hold")


_EXPORT_ABOUT = "Write conversations to a file or to standard output. A file that is there is never replaced unasked."
_IMPORT_ABOUT = """Read conversations from files of exlchat, ChatGPT (the archive or conversations.json), Open WebUI,
SillyTavern, text-generation-webui, llm (logs.db), exllamav3's chat, exui, aichat, ShareGPT, or of OpenAI's messages."""


def run(arguments: argparse.Namespace, store: TreeStore) -> ExitCode:
    """Carries out what was parsed. Mistakes are a line each on stderr.

    Raises:
        StoreError: of the store, in one line.
    """
    lines = ErrorLines(sys.stderr)
    try:
        if arguments.exchange == "export":
            return _export(arguments, store)
        return _import(arguments.files, store, lines)
    except (ExchangeError, paths.FolderError) as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _export(arguments: argparse.Namespace, store: TreeStore) -> ExitCode:
    idents = _chosen(arguments.ids, arguments.all, store)
    target = None if arguments.output == _STDOUT else Path(arguments.output).expanduser()
    form: Format = arguments.format or (_ENDINGS.get(target.suffix.lower(), "jsonl") if target else "jsonl")
    if target is not None and not arguments.force and os.path.lexists(target):
        raise ExchangeError(f"{target} is there already; choose another name, or replace it with --force")
    text = written([store.read_tree(ident) for ident in idents], form)
    if target is None:
        return _to_stdout(text)
    write_file(target, text, replace_it=arguments.force)
    ErrorLines(sys.stderr).say(f"{_counted(len(idents), 'conversation')} in {target}")
    return ExitCode.OK


def _chosen(wanted: Sequence[str], everything: bool, store: TreeStore) -> list[str]:
    known = [summary.id for summary in store.list_conversations()]
    if bool(wanted) == everything:
        raise ExchangeError("name the conversations to export by their ids, or all of them with --all")
    if everything:
        if not known:
            raise ExchangeError("there are no conversations to export")
        return known
    return list(dict.fromkeys(_by_beginning(ident, known) for ident in wanted))


def _by_beginning(wanted: str, known: Sequence[str]) -> str:
    found = [ident for ident in known if ident == wanted] or [ident for ident in known if ident.startswith(wanted)]
    if not found or not wanted:
        raise ExchangeError(f"there is no conversation {wanted!r}; exlchat sessions list shows their ids")
    if len(found) > 1:
        raise ExchangeError(f"{wanted!r} is the beginning of {len(found)} ids; give more of it")
    return found[0]


def _to_stdout(text: str) -> ExitCode:
    """A terminal gets no control characters; a file or a pipe gets the text as it is, in UTF-8."""
    if sys.stdout.isatty():
        return print_report(text)
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        abandon(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        abandon(sys.stdout)
        raise ExchangeError(f"standard output cannot be written ({(error.strerror or '').lower()})") from None
    return ExitCode.OK


def write_file(target: Path, text: str, *, replace_it: bool) -> None:
    """Writes at once, readable by its owner only.

    Raises:
        ExchangeError: the file is there, also if it came to be a moment ago.
        FolderError: it cannot be written.
    """
    if replace_it:
        paths.atomic_write(target, text)
        return
    paths.ensure_folder(target.parent)
    try:
        # Makes the name ours: nobody else's file of that name can be replaced from here on.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ExchangeError(f"{target} is there already; choose another name, or replace it with --force") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ExchangeError(f"{target} cannot be written ({reason.lower()}); mend its permissions") from None
    try:
        paths.atomic_write(target, text)
    except paths.FolderError:
        target.unlink(missing_ok=True)
        raise


def _import(files: Sequence[str], store: TreeStore, lines: ErrorLines) -> ExitCode:
    """Each file by itself: what is wrong with one does not stop the others."""
    worst = ExitCode.OK
    report: list[str] = []
    for name in files:
        path = Path(name).expanduser()
        try:
            found = read(path)
        except ExchangeError as error:
            lines.say(str(error))
            worst = ExitCode.ERROR
            continue
        for problem in found.problems:
            lines.say(f"{path.name}: {problem}")
        kept = _keep(found, path, store, lines)
        if found.lost or len(kept) < len(found.trees):
            worst = ExitCode.ERROR
        report.append(_told(path, found, kept))
    printed = print_report("\n".join(report) + "\n") if report else ExitCode.OK
    return worst if printed is ExitCode.OK else printed


def _keep(found: Imported, path: Path, store: TreeStore, lines: ErrorLines) -> list[ConversationTree]:
    """Those that were written; one that cannot be is a line."""
    kept: list[ConversationTree] = []
    for tree in found.trees:
        try:
            store.write_tree(_at_rest(tree))
            kept.append(tree)
        except StoreError as error:
            lines.say(f"{path.name}: {tree.title or 'a conversation'}: {error}")
    return kept


def _at_rest(tree: ConversationTree) -> ConversationTree:
    """No answer of a file is still being written."""
    messages = tuple(
        replace(message, status="partial") if message.status == "streaming" else message for message in tree.messages
    )
    return replace(tree, messages=messages)


def _told(path: Path, found: Imported, kept: Sequence[ConversationTree]) -> str:
    messages = sum(len(tree.messages) for tree in kept)
    counts = f"{_counted(len(kept), 'conversation')}, {_counted(messages, 'message')}"
    left_out = len(found.trees) - len(kept) + found.lost
    missing = f"; {left_out} could not be imported" if left_out else ""
    return f"{path.name} ({NAMES[found.kind]}): {counts}{missing}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
