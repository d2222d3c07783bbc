"""Whole conversations between the database and plain values. Each function runs in a transaction of its caller."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from typing import get_args

from exlchat.chat.model import IMPORTED_TITLE_LENGTH, ConversationTree, Message, MessageStatus, Role
from exlchat.chat.store.branches import renamed
from exlchat.chat.store.database import MissingRowError, RefusedError
from exlchat.chat.store.file import new_id
from exlchat.chat.store.rows import pack_object, require_kinds, unpack_object
from exlchat.chat.store.statements import automatic_title, conversation_messages, first_line, put_message
from exlchat.untrusted.text import one_line, storable


def read_tree(db: sqlite3.Connection, conversation_id: str) -> ConversationTree:
    """A conversation with all its branches, hidden messages too."""
    row = db.execute(
        "SELECT title, created_at, updated_at, tip_id, pinned, archived_at IS NOT NULL, draft, foreign_json "
        "FROM conversation WHERE id = ?",
        (conversation_id,),
    ).fetchone()
    if row is None:
        raise MissingRowError("conversation", conversation_id)
    title, created_at, updated_at, tip_id, pinned, archived, draft, foreign = row
    tags = db.execute("SELECT name FROM tag WHERE conversation_id = ? ORDER BY name", (conversation_id,)).fetchall()
    require_kinds(
        conversation_id, (title, tip_id, draft, foreign, *(name for (name,) in tags)), (created_at, updated_at)
    )
    return ConversationTree(
        title,
        created_at,
        updated_at,
        tip_id,
        # A repaired tree may have parents that are younger than their children.
        tuple(_parents_first(conversation_messages(db, conversation_id))),
        conversation_id,
        tuple(name for (name,) in tags),
        bool(pinned),
        bool(archived),
        draft,
        unpack_object(foreign),
    )


def write_tree(db: sqlite3.Connection, tree: ConversationTree, *, now: float) -> str:
    """Put a conversation into the database as a new one; ids that are taken are replaced. Its id.

    Titles become one line, lone surrogates U+FFFD, times that are none the present one; an answer that was being
    written is `partial`; what hangs on something deleted is deleted too.
    """
    ident = tree.id if tree.id and not _taken(db, "conversation", tree.id) else new_id()
    names = _names(db, tree)
    title = one_line(tree.title, IMPORTED_TITLE_LENGTH) if tree.title else None
    try:
        foreign = pack_object(tree.foreign or None)
    except ValueError as error:
        raise RefusedError(f"the conversation cannot be kept: {one_line(str(error))}") from None
    values = (
        ident,
        storable(title) if title else None,
        "user" if title else None,
        _moment(tree.created_at, now),
        _moment(tree.updated_at, now),
        tree.pinned,
        now if tree.archived else None,
        storable(tree.draft),
        foreign,
    )
    db.execute(
        "INSERT INTO conversation (id, title, title_by, created_at, updated_at, pinned, archived_at, draft, "
        "foreign_json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    db.executemany("INSERT INTO tag VALUES (?, ?)", [(ident, tag) for tag in clean_tags(tree.tags)])
    kept: dict[str, str | None] = {}
    ids = frozenset(names.values())
    for one in tree.messages:
        _put(db, ident, one, names, kept, ids=ids, now=now)
    tip_id = None if tree.tip_id is None else kept[tree.tip_id]
    db.execute("UPDATE conversation SET tip_id = ? WHERE id = ?", (names.get(tip_id or ""), ident))
    automatic = automatic_title(db, ident)
    if title is None or title in (automatic, first_line(db, ident)):
        db.execute(
            "UPDATE conversation SET title = ?, title_by = ? WHERE id = ?",
            (automatic, automatic and "first line", ident),
        )
    return ident


def holds(db: sqlite3.Connection, tree: ConversationTree) -> bool:
    try:
        there = read_tree(db, tree.id or "")
    except MissingRowError:
        return False
    said = {(one.id, one.text) for one in there.messages}
    return all((one.id, one.text) in said for one in tree.messages)


def clean_tags(tags: tuple[str, ...] | list[str]) -> list[str]:
    """Tags as they are kept: each one line of at most 40 characters, sorted, none twice, none empty."""
    return sorted({tag for tag in (one_line(storable(tag), 40) for tag in tags) if tag})


def _parents_first(messages: list[Message]) -> list[Message]:
    seen: set[str | None] = {None}
    ordered: list[Message] = []
    waiting: dict[str, list[Message]] = {}
    for one in messages:
        if one.parent_id not in seen:
            waiting.setdefault(str(one.parent_id), []).append(one)
            continue
        ready = [one]
        _place(ready, ordered, seen, waiting)
    for one in messages:
        # What hangs on nothing, or on itself, in a damaged tree is a beginning of its own, and is not left out.
        if one.id not in seen:
            waiting[str(one.parent_id)].remove(one)
            _place([replace(one, parent_id=None)], ordered, seen, waiting)
    return ordered


def _place(
    ready: list[Message],
    ordered: list[Message],
    seen: set[str | None],
    waiting: dict[str, list[Message]],
) -> None:
    """Messages whose parents are there, and all that waits for them."""
    while ready:
        first = ready.pop(0)
        seen.add(first.id)
        ordered.append(first)
        ready += waiting.pop(first.id, [])


def _names(db: sqlite3.Connection, tree: ConversationTree) -> dict[str, str]:
    """Under which id each message is kept; refuses a tree that is none."""
    names: dict[str, str] = {}
    for one in tree.messages:
        if one.id in names:
            raise RefusedError(f"two messages have the id {one_line(one.id, 60)}")
        if one.parent_id is not None and one.parent_id not in names:
            raise RefusedError(f"the message {one_line(one.id, 60)} stands before the one that it follows")
        if one.role not in get_args(Role) or one.status not in get_args(MessageStatus):
            raise RefusedError(f"the message {one_line(one.id, 60)} has an unknown role or status")
        usable = bool(one.id) and storable(one.id) == one.id and not _taken(db, "message", one.id)
        names[one.id] = one.id if usable else new_id()
    if tree.tip_id is not None and tree.tip_id not in names:
        raise RefusedError(f"the branch that is shown ends at {one_line(tree.tip_id, 60)}, which is not there")
    return names


def _put(
    db: sqlite3.Connection,
    conversation_id: str,
    one: Message,
    names: dict[str, str],
    kept: dict[str, str | None],
    *,
    ids: frozenset[str],
    now: float,
) -> None:
    message = replace(
        renamed(one, names),
        id=names[one.id],
        parent_id=None if one.parent_id is None else names[one.parent_id],
        created_at=_moment(one.created_at, now),
        status="partial" if one.status == "streaming" else one.status,
    )
    if message.edited_from not in ids:
        message = replace(message, edited_from=None)
    # Where what stands before is deleted, its nearest kept one is what the tip falls back to.
    gone = one.deleted or (one.parent_id is not None and kept[one.parent_id] != one.parent_id)
    kept[one.id] = one.id if not gone else (None if one.parent_id is None else kept[one.parent_id])
    try:
        put_message(db, conversation_id, message, now if gone else None)
    except (OverflowError, TypeError, ValueError) as error:
        raise RefusedError(f"the message {one_line(one.id, 60)} cannot be kept: {one_line(str(error))}") from None


def _taken(db: sqlite3.Connection, table: str, ident: str) -> bool:
    if storable(ident) != ident:
        return True
    return db.execute(f"SELECT 1 FROM {table} WHERE id = ?", (ident,)).fetchone() is not None


def _moment(seconds: float, now: float) -> float:
    return seconds if math.isfinite(seconds) else now
