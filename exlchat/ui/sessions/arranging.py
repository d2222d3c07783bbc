"""`exlchat sessions rm|restore|rename|tag|pin|archive`."""

from __future__ import annotations

import argparse

from exlchat.chat.store import ConversationStore
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.sessions.finding import conversation


def run_rm(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Deletes; what is meant is found first, so that a wrong id deletes nothing."""
    for ident in [conversation(store, one) for one in typed.ids]:
        store.delete(ident)
    return ExitCode.OK


def run_restore(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """Puts deleted conversations back on the list."""
    for ident in [conversation(store, one) for one in typed.ids]:
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
    """Takes a conversation off the list, or puts it back."""
    store.archive(conversation(store, typed.id), not typed.off)
    return ExitCode.OK
