"""`exlchat sessions export` and `exlchat sessions import`: conversations into files and out of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from exlchat import paths
from exlchat.app.chat.finding import conversation
from exlchat.app.chat.importing_files import counted, import_file
from exlchat.app.chat.writing_files import write_conversations
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.writing import written
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, complain, print_file, print_lines

_STDOUT = "-"


def run_exchange(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Carries out what was parsed. Mistakes are a line each on stderr.

    Raises:
        StoreError: of the store, in one line.
    """
    lines = ErrorLines()
    try:
        if typed.command == "export":
            return _export(store, typed)
        return _import(typed.files, store, lines)
    except (ExchangeError, paths.FolderError) as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _export(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    idents = _chosen(typed.ids, typed.all, store)
    target = None if typed.output == _STDOUT else paths.expanded(typed.output)
    trees = [store.read_tree(ident) for ident in idents]
    if target is None:
        return print_file(written(trees, typed.format or "jsonl"))
    write_conversations(target, trees, typed.format, replace_it=typed.force)
    complain(f"{counted(len(idents), 'conversation')} in {target}")
    return ExitCode.OK


def _chosen(wanted: Sequence[str], everything: bool, store: ConversationStore) -> list[str]:
    if bool(wanted) == everything:
        raise ExchangeError("name the conversations to export by their ids, or all of them with --all")
    if not everything:
        return list(dict.fromkeys(conversation(store, ident) for ident in wanted))
    known = [row.id for row in (*store.list_conversations(), *store.list_conversations("archived"))]
    if not known:
        raise ExchangeError("there are no conversations to export")
    return known


def _import(files: Sequence[str], store: ConversationStore, lines: ErrorLines) -> ExitCode:
    """Each file by itself: what is wrong with one does not stop the others."""
    worst = ExitCode.OK
    report: list[str] = []
    for name in files:
        path = paths.expanded(name)
        try:
            found = import_file(path, store, lines.say)
        except ExchangeError as error:
            lines.say(str(error))
            worst = ExitCode.ERROR
            continue
        if not found.all_of_it:
            worst = ExitCode.ERROR
        report.append(found.line)
    printed = print_lines(report)
    return worst if printed is ExitCode.OK else printed
