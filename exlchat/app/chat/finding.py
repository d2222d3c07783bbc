"""Which conversation or message is meant by the beginning of an id."""

from __future__ import annotations

import datetime

from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.listing import Which
from exlchat.untrusted.text import one_line

LAST = "last"
SHORT = 8
"""Characters of an id that are shown; more are, where two would look the same."""


def conversation(store: ConversationStore, typed: str, which: Which = "kept") -> str:
    """The id of the conversation that is meant.

    Args:
        store: where it is.
        typed: the beginning of an id, of whichever conversation, or `last`.
        which: what `last` stands for: the one on the list that was written last, or that was archived or deleted last.

    Raises:
        StoreError: there is none, or several.
    """
    if typed != LAST:
        return _only(store.find_ids("conversation", typed), "conversation", typed)
    if which != "kept":
        last = store.put_away_last(which)
        if last is None:
            raise StoreError(f"there is no {which} conversation")
        return last
    last = newest(store)
    if last is None:
        raise StoreError("there is no conversation yet")
    return last


def newest(store: ConversationStore) -> str | None:
    """The id of the conversation on the list that was written last, wherever it stands there."""
    last = max(store.list_conversations(), key=lambda row: row.updated_at, default=None)
    return None if last is None else last.id


def message(store: ConversationStore, typed: str) -> str:
    """The id of the message that is meant.

    Raises:
        StoreError: there is none, or several.
    """
    return _only(store.find_ids("message", typed), "message", typed)


def day(seconds: float) -> str:
    """A time as date and minute, where we are."""
    try:
        return f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "----------------"


def ago(seconds: float, now: float) -> str:
    """A time as how long it is ago, or as a date where that is a week and more; both in Unix seconds."""
    past = now - seconds
    if not 0 <= past < 7 * 86400:
        return "just now" if -60 <= past < 0 else day(seconds)[:10]
    for least, length, unit in ((86400, 86400, "d"), (3600, 3600, "h"), (60, 60, "min")):
        if past >= least:
            return f"{past // length:.0f} {unit} ago"
    return "just now"


def _only(found: list[str], what: str, typed: str) -> str:
    if not found:
        raise StoreError(f"there is no {what} {one_line(typed, 60)!r}; exlchat sessions list and show print ids")
    if len(found) > 1 and typed not in found:
        raise StoreError(f"several ids of {what}s begin with {one_line(typed, 60)!r}; type more of it")
    return typed if typed in found else found[0]
