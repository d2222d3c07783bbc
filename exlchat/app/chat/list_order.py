"""The order of the list of conversations: on top, in folders, by days, and at its end what was asked from the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.chat.store.database import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.chat.model import ConversationSummary

MOST_TAGS: Final = 100
FOLDER_MARK: Final = "/"
"""A tag that ends so is the folder of a conversation, which has one at most."""
ASKED: Final = "asked"
"""The folder of what `exlchat ask` has begun: a script may ask thousands of times, and nobody looks for those first."""


def in_order(summaries: Iterable[ConversationSummary]) -> list[ConversationSummary]:
    """As the list shows them, and as `/open N` counts; those of one place as they came."""
    return sorted(summaries, key=_place)


def folder_of(tags: Sequence[str]) -> str:
    """The folder among the tags of a conversation; empty if it lies in none."""
    return next((tag[:-1] for tag in tags if tag.endswith(FOLDER_MARK)), "")


def tags_after(there: Iterable[str], new: Iterable[str], gone: Iterable[str]) -> list[str]:
    """The tags of a conversation when some have been added and others taken away.

    Raises:
        StoreError: they would become too many; that they are too many is no reason not to take some away.
    """
    before = set(there)
    tags = (before - set(gone)) | set(new)
    if len(tags) > MOST_TAGS and tags - before:
        raise StoreError(f"a conversation has {MOST_TAGS} tags at most; this one would have {len(tags):,}")
    return sorted(tags)


def _place(summary: ConversationSummary) -> tuple[int, str]:
    if summary.pinned:
        return 0, ""
    folder = folder_of(summary.tags)
    if folder == ASKED:
        return 3, ""
    return (1, folder.casefold()) if folder else (2, "")
