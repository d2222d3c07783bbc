"""The `character_book` of a card, or a lorebook file, as a lorebook and back."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exlchat.chat.personas.card_values import count_value, number_value, text_list, text_value
from exlchat.chat.personas.decorators import split_decorators
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry

_MOST_ENTRIES = 10_000
_ENTRY_FIELDS = (
    "content",
    "name",
    "enabled",
    "selective",
    "constant",
    "insertion_order",
    "priority",
    "case_sensitive",
    "use_regex",
    "position",
)
_LISTS = ("keys", "secondary_keys")


def lorebook_of(book: Any) -> Lorebook | None:
    """The lorebook that a JSON object describes; `None` for anything else."""
    if not isinstance(book, dict):
        return None
    entries = book.get("entries")
    if isinstance(entries, dict):
        # SillyTavern's own files number them.
        entries = list(entries.values())
    listed = entries if isinstance(entries, list) else []
    return Lorebook(
        tuple(_entry(one if isinstance(one, dict) else {}) for one in listed[:_MOST_ENTRIES]),
        name=text_value(book.get("name")),
        description=text_value(book.get("description")),
        scan_depth=count_value(book.get("scan_depth")),
        token_budget=count_value(book.get("token_budget")) or None,
        recursive_scanning=book.get("recursive_scanning") is True,
    )


def put_lorebook(data: dict[str, Any], lorebook: Lorebook | None) -> None:
    """Write into `data["character_book"]` what differs from `lorebook`."""
    if lorebook is None:
        data.pop("character_book", None)
        return
    if not isinstance(data.get("character_book"), dict):
        data["character_book"] = {"extensions": {}, "entries": []}
    book = data["character_book"]
    before = lorebook_of(book) or Lorebook()
    for field in ("name", "description", "scan_depth", "token_budget", "recursive_scanning"):
        value = getattr(lorebook, field)
        if value != getattr(before, field):
            book[field] = value
            if value is None:
                del book[field]
    if lorebook.entries == before.entries:
        return
    old = book.get("entries")
    listed = list(old.values()) if isinstance(old, dict) else old if isinstance(old, list) else []
    raw = _put_entries(listed, before.entries, lorebook.entries)
    book["entries"] = dict(zip(_numbers(old), raw, strict=False)) if isinstance(old, dict) else raw


def _put_entries(raw: list[Any], before: Sequence[LoreEntry], after: Sequence[LoreEntry]) -> list[Any]:
    """`raw`, which says `before`, so that it says `after`: an entry that has only moved keeps all that is in it."""
    written: list[Any] = []
    steps = difflib.SequenceMatcher(None, before, after).get_opcodes()
    for step, start, end, first, last in steps:
        if step == "equal":
            written += raw[start:end]
            continue
        changed = raw[start:end] + [None] * (last - first)
        written += [_put_entry(one, entry) for one, entry in zip(changed, after[first:last], strict=False)]
    return written + raw[_MOST_ENTRIES:]


def _numbers(old: Mapping[str, Any]) -> Iterator[str]:
    """The names that entries had, then unused numbers."""
    yield from old
    yield from (str(number) for number in itertools.count() if str(number) not in old)


def without_decorators(book: Any) -> None:
    """Take the decorators out of the entries of a book, for programs that would tell them to the model."""
    entries = book.get("entries") if isinstance(book, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and "@@" in entry["content"]:
            entry["content"] = split_decorators(entry["content"])[1]


def _entry(raw: dict[str, Any]) -> LoreEntry:
    order = number_value(raw.get("insertion_order", raw.get("order")))
    enabled = raw.get("enabled", not raw.get("disable", False))
    return LoreEntry(
        content=text_value(raw.get("content")),
        keys=text_list(raw.get("keys", raw.get("key"))),
        secondary_keys=text_list(raw.get("secondary_keys", raw.get("keysecondary"))),
        name=text_value(raw.get("name") or raw.get("comment")),
        enabled=enabled is not False,
        selective=raw.get("selective") is True,
        constant=raw.get("constant") is True,
        insertion_order=0.0 if order is None else order,
        priority=number_value(raw.get("priority")),
        case_sensitive=raw.get("case_sensitive") is True,
        use_regex=raw.get("use_regex") is True,
        position="before_char" if raw.get("position") == "before_char" else "after_char",
    )


def _put_entry(old: Any, entry: LoreEntry) -> dict[str, Any]:
    raw = dict(old) if isinstance(old, dict) else {}
    if not raw:
        raw = {"keys": [], "content": "", "extensions": {}, "enabled": True, "insertion_order": 0, "use_regex": False}
    before = _entry(raw)
    for field in _ENTRY_FIELDS:
        value = getattr(entry, field)
        if value != getattr(before, field):
            raw[field] = value
            if value is None:
                del raw[field]
    for field in _LISTS:
        if getattr(entry, field) != getattr(before, field):
            raw[field] = list(getattr(entry, field))
    return raw
