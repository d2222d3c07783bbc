"""`exlchat sessions`: conversations on the command line."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from contextlib import closing

from exlchat import paths
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.cli.sessions import arranging, changing, looking
from exlchat.cli.sessions.parser import EXCHANGE
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines

Command = Callable[[ConversationStore, argparse.Namespace], ExitCode]


def _run_reproduce(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    # The others load no model.
    from exlchat.cli.sessions.reproducing import run_reproduce

    return run_reproduce(store, typed)


_COMMANDS: dict[str, Command] = {
    "list": looking.run_list,
    "show": looking.run_show,
    "search": looking.run_search,
    "stats": looking.run_stats,
    "rm": arranging.run_rm,
    "restore": arranging.run_restore,
    "rename": arranging.run_rename,
    "tag": arranging.run_tag,
    "pin": arranging.run_pin,
    "archive": arranging.run_archive,
    "pin-message": arranging.run_pin_message,
    "purge": arranging.run_purge,
    "reproduce": _run_reproduce,
    "edit": changing.run_edit,
    "choose": changing.run_choose,
    "branch": changing.run_branch,
    "cut": changing.run_cut,
    "undo": changing.run_undo,
}


def run_sessions(typed: argparse.Namespace) -> ExitCode:
    """Carries one command out; every failure is one line on stderr and an exit code."""
    lines = ErrorLines()
    try:
        where = paths.folders().conversations
        paths.ensure_folder(where.parent)
        if typed.command == "check":
            # What is damaged may not open as a store.
            return looking.run_check(where, typed)
        with closing(ConversationStore(where, or_read=True)) as store:
            command = _COMMANDS.get(typed.command)
            if command is None:
                return ExitCode(importlib.import_module(EXCHANGE).run(store, typed))
            return command(store, typed)
    except StoreError as error:
        lines.say(str(error))
        return ExitCode.ERROR
