"""`exlchat sessions edit|choose|branch|cut|undo`."""

from __future__ import annotations

import argparse
import sys

from exlchat.app.chat.finding import SHORT, conversation, message
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_lines
from exlchat.ui.terminal.typed_text import PromptInputError, read_text


def run_edit(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Puts a changed copy beside a message; prints its id."""
    ident = message(store, typed.message)
    try:
        text = read_text(typed.text, None if sys.stdin is None else sys.stdin.buffer)
    except PromptInputError as error:
        complain(str(error))
        return ExitCode.USAGE
    return print_lines([store.edit(ident, text, carry=typed.carry).id])


def run_choose(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Shows a message."""
    store.jump(message(store, typed.message))
    return ExitCode.OK


def run_branch(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Begins a new conversation; prints its id."""
    return print_lines([store.branch_off(message(store, typed.message)).id])


def run_cut(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Deletes from a message on."""
    store.delete_from(message(store, typed.message))
    return ExitCode.OK


def run_undo(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Takes the last change back, or does it again; says what it was."""
    ident = conversation(store, typed.id)
    change = store.redo(ident) if typed.redo else store.undo(ident)
    if change is None:
        complain(f"there is nothing to {'do again' if typed.redo else 'undo'} in {ident[:SHORT]}")
        return ExitCode.ERROR
    left = f"; conversation {change.kept[:SHORT]} stays: something was written in it since" if change.kept else ""
    return print_lines([f"{'done again' if typed.redo else 'undone'}: {change.what}{left}"])
