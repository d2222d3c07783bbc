"""`exlchat sessions rm|restore|rename|tag|pin|archive|pin-message|purge|edit|choose|branch|cut|undo`."""

from __future__ import annotations

import argparse
import sys

from exlchat.app.chat.finding import SHORT, conversation, message
from exlchat.app.chat.list_order import tags_after
from exlchat.chat.model import TITLE_LENGTH, clean_title, is_cut
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_lines
from exlchat.ui.terminal.typed_text import PromptInputError, read_text


def run_rm(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Deletes; what is meant is found first, so that a wrong id deletes nothing."""
    for ident in [conversation(store, one) for one in typed.ids]:
        store.delete(ident)
    return ExitCode.OK


def run_restore(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Puts deleted conversations back on the list; `last` is the one that was deleted last."""
    for ident in [conversation(store, one, "deleted") for one in typed.ids]:
        store.undo_delete(ident)
    return ExitCode.OK


def run_rename(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    store.rename(conversation(store, typed.id), typed.title)
    if is_cut(typed.title, clean_title(typed.title)):
        complain(f"the title is cut: one is a line of {TITLE_LENGTH} characters at most")
    return ExitCode.OK


def run_tag(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    ident = conversation(store, typed.id)
    new, gone = ((), typed.tags) if typed.remove else (typed.tags, ())
    store.set_tags(ident, tags_after(store.tags(ident), new, gone))
    return ExitCode.OK


def run_pin(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Keeps a conversation at the head of the list, or no longer."""
    store.pin_conversation(conversation(store, typed.id), not typed.off)
    return ExitCode.OK


def run_archive(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Takes a conversation off the list, or puts it back; `last` is then the one that was archived last."""
    store.archive(conversation(store, typed.id, "archived" if typed.off else "kept"), not typed.off)
    return ExitCode.OK


def run_pin_message(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Has the model go on seeing a message, or no longer."""
    ident = message(store, typed.message)
    if store.message(ident).role == "system":
        complain("a system prompt is seen as long as it holds; pin what was said")
        return ExitCode.ERROR
    store.pin(ident, not typed.off)
    return ExitCode.OK


def run_purge(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Removes what was deleted; without a clear word it says what that would be."""
    if not typed.yes:
        counts = store.counts()
        would = _removed(counts["deleted"], counts["deleted_messages"])
        complain(f"{would} would be removed for good; exlchat sessions purge --yes does it")
        return ExitCode.USAGE
    done = store.purge_deleted()
    return print_lines([f"removed for good: {_removed(done.conversations, done.messages)}"])


def _removed(conversations: int, messages: int) -> str:
    return (
        f"{conversations:,} conversation{'' if conversations == 1 else 's'} and "
        f"{messages:,} message{'' if messages == 1 else 's'} of others"
    )


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
    store.jump(message(store, typed.message))
    return ExitCode.OK


def run_branch(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    return print_lines([store.branch_off(message(store, typed.message)).id])


def run_cut(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
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
