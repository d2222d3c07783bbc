"""Which rows of a damaged database are ours, told by what they hold: nothing says any more what belongs to what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from exlchat.chat.repair.sqlite_pages import Record
from exlchat.chat.store.schema import CHANGE, CONVERSATION, MESSAGE, Column, Value

_LONGEST_WORD = 40
"""Characters of an id, a role or a status."""

Row = dict[str, Value]


@dataclass
class Saved:
    """What was found.

    Args:
        conversations: by id; each with its `rowid`.
        messages: the same.
        tags: pairs of conversation and tag.
        changes: what can be undone: conversation, what, when, whether undone, steps; oldest first.
        cut: messages of whose text only the beginning is there.
        known_conversations: ids that are named anywhere.
        known_messages: the same.
    """

    conversations: dict[str, Row] = field(default_factory=dict)
    messages: dict[str, Row] = field(default_factory=dict)
    tags: set[tuple[str, str]] = field(default_factory=set)
    changes: dict[int, tuple[Value, ...]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    known_conversations: set[str] = field(default_factory=set)
    known_messages: set[str] = field(default_factory=set)


def collect(records: Iterable[Record]) -> Saved:
    """All rows of ours among the records of a file; of a row that is there twice, the later one."""
    saved = Saved()
    for record in records:
        if record.rowid is None:
            _take_entry(record.values, saved)
        else:
            _take_row(record, record.rowid, saved)
    for row in saved.messages.values():
        saved.known_conversations.add(str(row["conversation_id"]))
        saved.known_messages.update(str(row[name]) for name in ("id", "parent_id") if row[name] is not None)
    saved.known_conversations.update(saved.conversations)
    return saved


def _take_row(record: Record, rowid: int, saved: Saved) -> None:
    values = record.values
    if _is_message(values, whole=record.whole):
        row = {**_named(MESSAGE, values), "rowid": rowid}
        if not record.whole:
            row["status"] = "partial"
        _keep(saved.messages, row, _weight_of_message)
        whole = str(saved.messages[str(row["id"])]["text"]) != row["text"] or record.whole
        (saved.cut.discard if whole else saved.cut.add)(str(row["id"]))
    elif record.whole and _is_conversation(values):
        _keep(saved.conversations, {**_named(CONVERSATION, values), "rowid": rowid}, _weight_of_conversation)
    elif record.whole and _is_change(values):
        saved.changes[rowid] = values[1:]
    elif record.whole and len(values) == 3 and values[0] is None:
        # What the search knows by name.
        if _is_word(values[1]) and values[2] is None:
            saved.known_messages.add(str(values[1]))
        if _is_word(values[2]) and values[1] is None:
            saved.known_conversations.add(str(values[2]))


def _take_entry(values: Sequence[Value], saved: Saved) -> None:
    """Tags are an index themselves; the others name what there was."""
    match values:
        case (str(ident), str(tag)) if _is_word(ident):
            saved.tags.add((ident, tag))
        case (str(ident), "system" | "user" | "assistant", _, int()) if _is_word(ident):
            saved.known_conversations.add(ident)
        case (None | str(), None | int() | float(), str(ident), int()) if _is_word(ident):
            saved.known_messages.add(ident)


def _is_message(values: Sequence[Value], *, whole: bool) -> bool:
    """Its columns in their order; of one that is cut there are at least those up to the text."""
    if len(values) < (_fewest(MESSAGE) if whole else 5):
        return False
    ident, conversation, parent, role, text, *rest = values
    named = _is_word(ident) and _is_word(conversation) and _is_word(role) and (parent is None or _is_word(parent))
    if not named or not isinstance(text, str) or not str(ident).isprintable():
        # Zeros in an id are a page that was written over, and make another message of it.
        return False
    # A record that is none says nothing of whose row it is.
    return all(one is None or isinstance(one, column.types) for one, column in zip(rest, MESSAGE[5:8], strict=False))


def _is_conversation(values: Sequence[Value]) -> bool:
    fewest = _fewest(CONVERSATION)
    return (
        len(values) >= fewest
        and _is_word(values[0])
        and all(isinstance(value, column.types) for value, column in zip(values, CONVERSATION[:fewest], strict=False))
    )


def _fewest(columns: Sequence[Column]) -> int:
    """How many columns the oldest rows have."""
    return sum(column.since == 1 for column in columns)


def _is_change(values: Sequence[Value]) -> bool:
    return (
        len(values) == 1 + len(CHANGE)
        and values[0] is None
        and all(isinstance(value, column.types) for value, column in zip(values[1:], CHANGE, strict=True))
    )


def _is_word(value: Value) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_WORD


def _named(columns: Sequence[Column], values: Sequence[Value]) -> Row:
    return dict(zip_longest((column.name for column in columns), values[: len(columns)]))


def _keep(rows: dict[str, Row], row: Row, weight: Callable[[Row], tuple[float, ...]]) -> None:
    ident = str(row["id"])
    if ident not in rows or weight(row) >= weight(rows[ident]):
        rows[ident] = row


def _weight_of_message(row: Row) -> tuple[float, ...]:
    """An answer grows while it is written, and is closed then."""
    return row["status"] == "complete", len(str(row["text"]))


def _weight_of_conversation(row: Row) -> tuple[float, ...]:
    updated = row["updated_at"]
    return (updated if isinstance(updated, int | float) else 0.0,)
