"""Full-text search over messages, thoughts and titles."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from exlchat.chat.model import Role
from exlchat.chat.store.rows import shown_time, shown_title

SNIPPET_WORDS = 16
MOST_WORDS = 24
MOST_RANKED = 4000
"""What is found in more places is nearly everywhere: weighing it says little, and takes longer than typing."""
_AT_ONCE = 500  # values that a statement is given
_WEIGHTS = "AND search_index.rank MATCH 'bm25(1.0, 0.5, 4.0)'"
"""Of text, thoughts and titles."""

_BIDI = dict.fromkeys(map(ord, "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"))


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Where something was found.

    Args:
        conversation_id: in which conversation.
        title: its title.
        message_id: the message, which `ConversationStore.jump` shows; `None` when it is the title.
        role: of the message.
        created_at: of the message, or when the conversation was last written in.
        snippet: one line around what was found, safe to show.
        marks: the parts of it that were found, as offsets of their first character and of the one behind their last.
        rank: the lower, the better it fits; 0 where nothing was weighed.
    """

    conversation_id: str
    title: str
    message_id: str | None
    role: Role | None
    created_at: float
    snippet: str
    marks: tuple[tuple[int, int], ...]
    rank: float


def search(db: sqlite3.Connection, text: str, limit: int = 20) -> list[SearchHit]:
    """The best `limit` hits for all words of `text`, each of which may be the beginning of a word.

    Of what is found in more than `MOST_RANKED` places the newest come first.
    """
    query = match_query(text)
    if query is None or limit < 1:
        return []
    many = db.execute(
        "SELECT 1 FROM search_index WHERE search_index MATCH ? LIMIT 1 OFFSET ?", (query, MOST_RANKED)
    ).fetchone()
    rank, order = ("0.0", "search_index.rowid DESC") if many else ("search_index.rank", "search_index.rank")
    return _hits(db, query, rank, f"{'' if many else _WEIGHTS} ORDER BY {order} LIMIT {int(limit)}")


def search_inside(db: sqlite3.Connection, text: str, conversation_ids: Sequence[str]) -> list[SearchHit]:
    """Of each of these conversations that has the words in a message, the message that they fit best."""
    query = match_query(text)
    if query is None:
        return []
    best: dict[str, tuple[float, int]] = {}
    for start in range(0, len(conversation_ids), _AT_ONCE):
        asked = conversation_ids[start : start + _AT_ONCE]
        for ident, place, rank in db.execute(
            "SELECT m.conversation_id, search_index.rowid, search_index.rank "
            "FROM search_index JOIN searchable s ON s.id = search_index.rowid JOIN message m ON m.id = s.message_id "
            f"WHERE search_index MATCH ? {_WEIGHTS} AND m.deleted_at IS NULL "
            f"AND m.conversation_id IN ({','.join('?' * len(asked))})",
            (query, *asked),
        ):
            best[ident] = min(best.get(ident, (rank, place)), (rank, place))
    places = ",".join(str(place) for _, place in best.values())
    return _hits(db, query, "search_index.rank", f"{_WEIGHTS} AND search_index.rowid IN ({places})")


def _hits(db: sqlite3.Connection, query: str, rank: str, narrowed: str) -> list[SearchHit]:
    begin, end = f"\x02{uuid.uuid4().hex}", f"\x03{uuid.uuid4().hex}"
    rows = db.execute(
        "SELECT c.id, c.title, m.id, m.role, coalesce(m.created_at, c.updated_at), "
        f"snippet(search_index, -1, :begin, :end, '…', :words), {rank} "
        "FROM search_index JOIN searchable s ON s.id = search_index.rowid "
        "LEFT JOIN message m ON m.id = s.message_id "
        "JOIN conversation c ON c.id = coalesce(m.conversation_id, s.conversation_id) "
        f"WHERE search_index MATCH :query AND c.deleted_at IS NULL AND m.deleted_at IS NULL {narrowed}",
        {"begin": begin, "end": end, "words": SNIPPET_WORDS, "query": query},
    )
    hits = []
    for conversation_id, title, message_id, role, created_at, marked, fits in rows:
        snippet, marks = _unmarked(marked, begin, end)
        hits.append(
            SearchHit(
                conversation_id,
                shown_title(title),
                message_id,
                role,
                shown_time(created_at),
                snippet,
                marks,
                float(fits),
            )
        )
    return hits


def match_query(text: str) -> str | None:
    """`text` in FTS5's own language, where nothing in it means anything but itself; `None` when no word is in it."""
    # In quotes everything is text; a quotation mark inside is written twice, and NUL would end the query.
    words = [word for word in text.replace("\0", " ").split() if any(map(_is_indexed, word))]
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words[:MOST_WORDS]) or None


def _is_indexed(character: str) -> bool:
    # What unicode61 makes tokens of: https://sqlite.org/fts5.html#unicode61_tokenizer
    return unicodedata.category(character)[0] in "LN" or unicodedata.category(character) == "Co"


def _unmarked(marked: str, begin: str, end: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text without marks, as one line, and where the marks were."""
    shown, marks, start = "", [], 0
    for piece in re.split(f"({begin}|{end})", marked):
        if piece == begin:
            start = len(shown)
        elif piece == end:
            marks.append((start, len(shown)))
        else:
            plain = "".join(" " if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one for one in piece)
            plain = re.sub(r"\s+", " ", plain.translate(_BIDI))
            shown += plain.lstrip() if not shown or shown.endswith(" ") else plain
    return shown.rstrip(), tuple((first, min(last, len(shown.rstrip()))) for first, last in marks)
