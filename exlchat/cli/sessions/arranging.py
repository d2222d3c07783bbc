"""`exlchat sessions rm|restore|rename|tag|pin|archive|pin-message|purge`."""

from __future__ import annotations

import argparse

from exlchat.app.chat.finding import conversation, message
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import complain, print_lines


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
    """Gives a title."""
    store.rename(conversation(store, typed.id), typed.title)
    return ExitCode.OK


def run_tag(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Adds tags, or takes them away."""
    ident = conversation(store, typed.id)
    there = set(store.tags(ident))
    store.set_tags(ident, list(there - set(typed.tags) if typed.remove else there | set(typed.tags)))
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
