"""What was changed in a conversation, step by step, so that it can be undone and done again.

A step says what something was before and is after. Messages themselves never change: a tip moves, messages are hidden
or shown, and what is written on the cover of a conversation (title, tags, marks) is replaced. Each function runs inside
a transaction that its caller holds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from exlchat.chat.store.database import RefusedError
from exlchat.chat.store.schema import CONVERSATION, MESSAGE
from exlchat.chat.store.statements import tip_of
from exlchat.untrusted.text import one_line

What = Literal[
    "edit",
    "another token",
    "jump",
    "branch",
    "delete messages",
    "delete conversation",
    "rename",
    "tag",
    "pin",
    "leave out",
    "archive",
    "settings",
    "persona",
    "group",
    "system prompt",
]
Step = dict[str, Any]

_UNDOABLE = {
    "conversation": {
        column.name: column
        for column in CONVERSATION
        if column.name in ("title", "title_by", "pinned", "archived_at", "deleted_at")
    },
    "message": {column.name: column for column in MESSAGE if column.name in ("pinned", "left_out", "settings")},
}


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was done, undone or done again in a conversation; `kept` names one that an undo left there."""

    conversation_id: str
    what: str
    kept: str | None = None


def set_columns(
    db: sqlite3.Connection, table: Literal["conversation", "message"], ident: str, **values: str | float | None
) -> list[Step]:
    """Set columns of an existing row and return the steps; columns that hold the value already give none."""
    names = list(values)
    row = db.execute(f"SELECT {', '.join(names)} FROM {table} WHERE id = ?", (ident,)).fetchone()
    if row is None:
        raise RefusedError(f"there is no {table} {ident}; it may have been removed by another program")
    steps = [
        {"do": "set", "table": table, "id": ident, "column": name, "before": before, "after": values[name]}
        for name, before in zip(names, row, strict=True)
        if before != values[name]
    ]
    return _carried_out(db, steps)


def set_tags(db: sqlite3.Connection, conversation_id: str, tags: Sequence[str]) -> list[Step]:
    tip_of(db, conversation_id)
    rows = db.execute("SELECT name FROM tag WHERE conversation_id = ? ORDER BY name", (conversation_id,))
    before, after = [name for (name,) in rows], sorted(set(tags))
    if before == after:
        return []
    return _carried_out(db, [{"do": "tags", "id": conversation_id, "before": before, "after": after}])


def move_shown(db: sqlite3.Connection, conversation_id: str, tip_id: str | None) -> list[Step]:
    before = tip_of(db, conversation_id)
    if before == tip_id:
        return []
    return _carried_out(db, [{"do": "tip", "id": conversation_id, "before": before, "after": tip_id}])


def shown_moved(conversation_id: str, before: str | None, after: str) -> list[Step]:
    """Another branch is shown already, because a message was written there."""
    return [{"do": "tip", "id": conversation_id, "before": before, "after": after}]


def hide(db: sqlite3.Connection, message_ids: Sequence[str], now: float) -> list[Step]:
    """Hide messages: a whole subtree, so that nothing that is shown hangs on something hidden."""
    return _carried_out(db, [{"do": "hide", "messages": list(message_ids), "at": now}])


def branched(db: sqlite3.Connection, conversation_id: str, now: float) -> list[Step]:
    """A conversation was made as a copy of a branch; taken back, it is deleted unless somebody has written in it."""
    rows = db.execute("SELECT id FROM message WHERE conversation_id = ?", (conversation_id,))
    return [{"do": "branch", "id": conversation_id, "at": now, "messages": [ident for (ident,) in rows]}]


def record(db: sqlite3.Connection, conversation_id: str, what: What, steps: Sequence[Step], now: float) -> None:
    """Keep what was done; what was undone before can then no longer be done again. No steps: nothing was done."""
    if not steps:
        return
    db.execute("DELETE FROM change WHERE conversation_id = ? AND undone = 1", (conversation_id,))
    db.execute(
        "INSERT INTO change (conversation_id, what, changed_at, steps) VALUES (?, ?, ?, ?)",
        (conversation_id, what, now, json.dumps(list(steps))),
    )


def undo(db: sqlite3.Connection, conversation_id: str) -> Change | None:
    """Take back the newest change of a conversation; `None` when there is none left.

    An edit or a jump is taken back by showing what was shown before: what was written stays an alternative, and
    nothing that was written since is hidden. A conversation that was branched off stays where somebody has written
    in it; `Change.kept` names it then.
    """
    return _turn(db, conversation_id, "undone = 0 ORDER BY id DESC", back=True)


def redo(db: sqlite3.Connection, conversation_id: str) -> Change | None:
    """Do again what was undone last; `None` when nothing was, or something was done or written since."""
    return _turn(db, conversation_id, "undone = 1 ORDER BY id", back=False)


def forget_changes(db: sqlite3.Connection, *, before: float) -> None:
    """Forget changes for good, and remove the messages that they hid."""
    db.execute("DELETE FROM change WHERE changed_at < ?", (before,))
    db.execute("DELETE FROM message WHERE deleted_at < ? AND status <> 'streaming'", (before,))


def forget_deletions(db: sqlite3.Connection) -> int:
    """Remove all messages that are hidden, and what could be undone where they were; returns how many there were.

    Undoing older changes there might lead to what is gone.
    """
    gone = "deleted_at IS NOT NULL AND status <> 'streaming'"
    db.execute(f"DELETE FROM change WHERE conversation_id IN (SELECT conversation_id FROM message WHERE {gone})")
    return db.execute(f"DELETE FROM message WHERE {gone}").rowcount


def are_steps(content: object) -> TypeGuard[list[Step]]:
    """Whether what was kept of a change says what to do: a database may be damaged, or of anybody's making."""
    return isinstance(content, list) and all(isinstance(step, dict) and _is_step(step) for step in content)


def _is_step(step: Step) -> bool:
    match step:
        case {"do": "set", "table": str(table), "column": str(column), "id": str(), "before": before, "after": after}:
            held = _UNDOABLE.get(table, {}).get(column)
            return held is not None and held.fits(before) and held.fits(after)
        case {"do": "tags", "id": str(), "before": list(before), "after": list(after)}:
            return _are_texts([*before, *after])
        case {"do": "tip", "id": str(), "before": str() | None, "after": str() | None}:
            return True
        case {"do": "hide", "messages": list(messages), "at": int() | float()}:
            return _are_texts(messages)
        case {"do": "branch", "id": str(), "at": int() | float()}:
            return isinstance(step.get("kept", False), bool) and _are_texts(step.get("messages", []))
    return False


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _unpacked(packed: object) -> object:
    try:
        return json.loads(packed) if isinstance(packed, str) else None
    except (ValueError, RecursionError):
        return None


def _turn(db: sqlite3.Connection, conversation_id: str, order: str, *, back: bool) -> Change | None:
    tip_of(db, conversation_id)
    row = db.execute(
        f"SELECT id, what, steps FROM change WHERE conversation_id = ? AND {order} LIMIT 1", (conversation_id,)
    ).fetchone()
    if row is None:
        return None
    ident, what, packed = row
    steps = _unpacked(packed)
    if not are_steps(steps):
        raise RefusedError(
            f"what is noted of the last change ({one_line(str(what), 40)}) cannot be read; "
            "exlchat sessions check --repair takes it out of the way"
        )
    # The names of tables and columns in them are ours, by now.
    turned = [_apply(db, step, back=back) for step in (reversed(steps) if back else steps)]
    packed = json.dumps(turned[::-1] if back else turned)
    db.execute("UPDATE change SET undone = ?, steps = ? WHERE id = ?", (back, packed, ident))
    kept = next((step["id"] for step in turned if back and step["do"] == "branch" and step["kept"]), None)
    return Change(conversation_id, what, kept)


def _carried_out(db: sqlite3.Connection, steps: list[Step]) -> list[Step]:
    return [_apply(db, step, back=False) for step in steps]


def _apply(db: sqlite3.Connection, step: Step, *, back: bool) -> Step:
    """Carry a step out, or take it `back`; returns it as it is to be noted."""
    match step["do"]:
        case "branch":
            return _turn_branch(db, step, back=back)
        case "set" if _is_older_branch(step):
            return _turn_branch(db, {"do": "branch", "id": step["id"], "at": step["before"]}, back=back)
        case "set":
            _set(db, step["table"], step["column"], step["id"], step["before" if back else "after"])
        case "tags":
            db.execute("DELETE FROM tag WHERE conversation_id = ?", (step["id"],))
            names = [(step["id"], name) for name in step["before" if back else "after"]]
            db.executemany("INSERT INTO tag VALUES (?, ?)", names)
        case "tip":
            return _move(db, step, back=back)
        case "hide":
            deleted_at = None if back else step["at"]
            values = [(deleted_at, ident) for ident in step["messages"]]
            db.executemany("UPDATE message SET deleted_at = ? WHERE id = ?", values)
        case other:
            raise KeyError(other)
    return step


def _is_older_branch(step: Step) -> bool:
    """Before this program had a step for it, a branch was noted as a conversation that had been deleted until then."""
    return (step["table"], step["column"], step["after"]) == ("conversation", "deleted_at", None)


def _turn_branch(db: sqlite3.Connection, step: Step, *, back: bool) -> Step:
    """A conversation that holds more than its copies is neither deleted nor, done again, taken out of the bin."""
    kept = _written_since(db, step) if back else step.get("kept", False)
    if not kept:
        db.execute("UPDATE conversation SET deleted_at = ? WHERE id = ?", (step["at"] if back else None, step["id"]))
    return {**step, "kept": kept}


def _written_since(db: sqlite3.Connection, step: Step) -> bool:
    """Whether a conversation has messages, or words in its composer, that did not come with the branch."""
    rows = db.execute("SELECT id, created_at FROM message WHERE conversation_id = ?", (step["id"],)).fetchall()
    draft = db.execute("SELECT 1 FROM conversation WHERE id = ? AND draft <> ''", (step["id"],)).fetchone()
    if "messages" in step:
        copies = set(step["messages"])
        return draft is not None or any(ident not in copies for ident, _ in rows)
    # What an older program noted does not name the copies; they have the times of what they are copies of.
    return draft is not None or any(created_at >= step["at"] for _, created_at in rows)


def _set(db: sqlite3.Connection, table: str, column: str, ident: str, value: str | float | None) -> None:
    db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (value, ident))


def _move(db: sqlite3.Connection, step: Step, *, back: bool) -> Step:
    """The tip of now is where the other direction leads: what was written since is found again."""
    here, there = ("after", "before") if back else ("before", "after")
    now = tip_of(db, step["id"])
    db.execute(
        "UPDATE conversation SET tip_id = ? WHERE id = ?", (nearest_kept(db, step["id"], step[there]), step["id"])
    )
    return {**step, here: now}


def nearest_kept(db: sqlite3.Connection, conversation_id: str, message_id: str | None) -> str | None:
    """The message itself, or the nearest one before it that was not deleted."""
    row = db.execute(
        # The way up ends at the first one that was not deleted, and where a damaged tree leads back to itself.
        "WITH RECURSIVE up (id, parent_id, gone) AS ("
        "SELECT id, parent_id, deleted_at IS NOT NULL FROM message WHERE id = ? AND conversation_id = ? UNION "
        "SELECT m.id, m.parent_id, m.deleted_at IS NOT NULL FROM up JOIN message m ON m.id = up.parent_id "
        "WHERE up.gone) SELECT id FROM up WHERE NOT gone",
        (message_id, conversation_id),
    ).fetchone()
    return None if row is None else str(row[0])
