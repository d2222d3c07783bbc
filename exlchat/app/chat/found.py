"""What a search shows of each hit: a row a place, and plain text around what was found. No terminal library."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.plain_text import Excerpt, plain
from exlchat.chat.store.search import SearchHit
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from exlchat.chat.model import ConversationSummary
    from exlchat.chat.store.conversations import ConversationStore

_BEFORE = 24
"""Cells of an excerpt before the first mark: what comes behind it says more."""
_LISTED = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: words, and what the conversations must be like.

    Args:
        words: "" where only the rest counts.
        since, before: seconds, of the message or the last use of the conversation.
        tags: all of them.
    """

    words: str
    since: float = float("-inf")
    before: float = float("inf")
    tags: tuple[str, ...] = ()

    @property
    def is_narrowed(self) -> bool:
        return bool(self.tags) or (self.since, self.before) != (float("-inf"), float("inf"))


def wanted(typed: str) -> Wanted:
    """Words, of which `on:`, `after:`, `before:` with a day, a month or a year, and `tag:` narrow the rest.

    Raises:
        NotPossibleError: a day is none.
    """
    found = Wanted("")
    words = []
    for word in typed.split():
        name, colon, value = word.partition(":")
        match name if colon and value else "":
            case "on":
                first, end = _days(value)
                found = replace(found, since=max(found.since, first), before=min(found.before, end))
            case "after":
                found = replace(found, since=max(found.since, _days(value)[1]))
            case "before":
                found = replace(found, before=min(found.before, _days(value)[0]))
            case "tag":
                found = replace(found, tags=(*found.tags, value))
            case _:
                words.append(word)
    return replace(found, words=" ".join(words))


def _days(text: str) -> tuple[float, float]:
    """The first second of a day, a month or a year, and the first one behind it."""
    numbers = text.split("-")
    try:
        year, month, day = (int(number) for number in (*numbers, *("1",) * (3 - len(numbers))))
        first = datetime.datetime(year, month, day)
        match len(numbers):
            case 1:
                end = first.replace(year=year + 1)
            case 2:
                end = first.replace(year=year + month // 12, month=month % 12 + 1)
            case _:
                end = first + datetime.timedelta(days=1)
        return first.timestamp(), end.timestamp()
    except (ValueError, OverflowError, OSError):
        raise NotPossibleError(f"{one_line(text, 20)} is no day such as 2026-03-14, no month and no year") from None


def search(store: ConversationStore, typed: str, limit: int) -> list[SearchHit]:
    """The best hits, a place each: a title is none of them where something in its conversation is.

    Raises:
        NotPossibleError: a day is none.
        StoreError: it cannot be read.
    """
    asked = wanted(typed)
    kept = {one.id: one for one in _conversations(store)} if asked.is_narrowed else {}
    if asked.is_narrowed:
        tagged = {ident for ident, one in kept.items() if set(asked.tags) <= set(one.tags)}
        hits = store.search(asked.words, _LISTED) if asked.words else [_as_hit(one) for one in kept.values()]
        hits = [hit for hit in hits if hit.conversation_id in tagged and asked.since <= hit.created_at < asked.before][
            :limit
        ]
    else:
        hits = store.search(asked.words, limit)
    inside = {hit.conversation_id for hit in hits if hit.message_id is not None}
    hits = [hit for hit in hits if hit.message_id is not None or hit.conversation_id not in inside]
    if not asked.words:
        return hits
    # Its best message may have come behind all these titles.
    titles = [hit.conversation_id for hit in hits if hit.message_id is None]
    messages = {hit.conversation_id: hit for hit in store.search_inside(asked.words, titles)}
    return [hit if hit.message_id is not None else messages.get(hit.conversation_id, hit) for hit in hits]


def _conversations(store: ConversationStore) -> Iterable[ConversationSummary]:
    yield from store.list_conversations()
    yield from store.list_conversations("archived")


def _as_hit(one: ConversationSummary) -> SearchHit:
    many = "1 message" if one.message_count == 1 else f"{one.message_count} messages"
    tags = "".join(f" #{tag}" for tag in one.tags)
    return SearchHit(one.id, one.title, None, None, one.updated_at, f"{many}{tags}", (), 0.0)


def excerpt(hit: SearchHit, room: int) -> Excerpt:
    """What stands around the first place that was found, of about `room` characters, the place among them."""
    whole = plain(hit.snippet, hit.marks)
    begin = 0
    if whole.marks and whole.marks[0][0] > _BEFORE and len(whole.text) > room:
        at = whole.marks[0][0] - _BEFORE
        begin = whole.text.find(" ", at, whole.marks[0][0]) + 1 or at
    if not begin:
        return whole
    lead = "…"
    by = len(lead) - begin
    return Excerpt(f"{lead}{whole.text[begin:]}", tuple((first + by, end + by) for first, end in whole.marks))


def words_found(hit: SearchHit) -> tuple[str, ...]:
    """The words as they stand there, each once."""
    return tuple(dict.fromkeys(word for first, end in hit.marks if (word := hit.snippet[first:end].strip())))


def around(hit: SearchHit, text: str, *, before: int = 160, after: int = 600) -> Excerpt:
    """More of the message, beginning a little before what was found; all places in it are marked."""
    sentence = plain(hit.snippet).text.strip("… ")
    said = plain(" ".join(text.split())).text
    said = " ".join(said.split())
    words = words_found(hit)
    at = max(said.find(" ".join(sentence.split())), 0)
    first = min((place for word in words if (place := said.find(word, at)) >= 0), default=0)
    begin = max(first - before, 0)
    begin = said.find(" ", begin, first) + 1 or begin if begin else 0
    end = first + after
    shown = f"{'…' if begin else ''}{said[begin:end]}{'…' if end < len(said) else ''}"
    return Excerpt(shown, places_of(shown, words))


def places_of(text: str, words: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Where words begin like one of these, capitals aside, as far as those reach."""
    wished = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return tuple(place.span() for place in re.finditer(rf"(?<!\w)(?:{wished})", text, re.IGNORECASE)) if wished else ()
