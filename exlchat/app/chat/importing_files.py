"""Conversations out of a file, into the store: what could be kept is kept, and the rest is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exlchat.chat.exchange.reading import NAMES, ImportedConversations, read
from exlchat.chat.model import IMPORTED_TITLE_LENGTH, TITLE_LENGTH, ConversationTree, is_cut
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.untrusted.text import one_line


@dataclass(frozen=True, slots=True)
class Imported:
    """The ids of those that were kept, whether that is all that the file has, and a line that tells of it."""

    ids: tuple[str, ...]
    all_of_it: bool
    line: str


def import_file(path: Path, store: ConversationStore, complain: Callable[[str], None]) -> Imported:
    """Keep what a file has; what is wrong with one conversation is a line for `complain` and stops no other.

    Raises:
        ExchangeError: the file cannot be read, or is of no known kind.
    """
    found = read(path)
    for problem in found.problems:
        complain(f"{one_line(path.name)}: {problem}")
    kept: list[ConversationTree] = []
    ids: list[str] = []
    for tree in found.trees:
        try:
            ids.append(store.write_tree(tree))
            kept.append(tree)
        except StoreError as error:
            complain(f"{one_line(path.name)}: {one_line(tree.title or '') or 'a conversation'}: {error}")
            continue
        if tree.title and is_cut(tree.title, one_line(tree.title, IMPORTED_TITLE_LENGTH)):
            title = one_line(tree.title, TITLE_LENGTH)
            complain(f"{one_line(path.name)}: {title}: its title is cut to {IMPORTED_TITLE_LENGTH} characters")
    whole = not (found.lost or found.left_out) and len(kept) == len(found.trees)
    return Imported(tuple(ids), whole, _told(path, found, kept))


def _told(path: Path, found: ImportedConversations, kept: Sequence[ConversationTree]) -> str:
    messages = sum(len(tree.messages) for tree in kept)
    counts = f"{counted(len(kept), 'conversation')}, {counted(messages, 'message')}"
    left_out = len(found.trees) - len(kept) + found.lost
    missing = f"; {left_out} could not be imported" if left_out else ""
    missing += f"; {counted(found.left_out, 'message')} or lines left out" if found.left_out else ""
    return f"{one_line(path.name)} ({NAMES[found.kind]}): {counts}{missing}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
