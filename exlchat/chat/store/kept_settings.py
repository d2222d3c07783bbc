"""How a conversation is spoken to, kept with the message from which on it is so. Inside a transaction of the caller."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from exlchat.chat.store import changes
from exlchat.chat.store.database import RefusedError
from exlchat.chat.store.rows import pack_object, unpack_object
from exlchat.chat.store.statements import load_branch, tip_of


def keep_settings(db: sqlite3.Connection, conversation_id: str, settings: Mapping[str, Any], *, now: float) -> str:
    """Say how a conversation is spoken to from the end of its branch on, which an undo takes back.

    An answer that is being written may come to nothing, so what stands before it has them; and as long as nobody has
    answered a greeting the first message, because greetings are alternatives.

    Returns:
        The id of the message that has them.
    """
    branch = load_branch(db, tip_of(db, conversation_id))
    if not branch:
        raise RefusedError("the conversation has no message yet")
    begun = any(one.role == "user" for one in branch)
    there = [one for one in branch if one.status != "streaming" or one.settings is not None]
    ident = (there[-1] if begun and there else branch[0]).id
    steps = changes.set_columns(db, "message", ident, settings=pack_object(settings))
    if steps and not _joined(db, conversation_id, steps[0]):
        changes.record(db, conversation_id, "settings", steps, now)
    return ident


def _joined(db: sqlite3.Connection, conversation_id: str, step: changes.Step) -> bool:
    """Whether the newest change was one of the same value, which this one goes on with: a key that is held down."""
    row = db.execute(
        "SELECT id, steps FROM change WHERE conversation_id = ? AND what = 'settings' AND undone = 0 "
        "AND id = (SELECT max(id) FROM change WHERE conversation_id = ?)",
        (conversation_id, conversation_id),
    ).fetchone()
    if row is None:
        return False
    try:
        (last,) = json.loads(row[1])
        same = (last["id"], last["after"]) == (step["id"], step["before"])
        names = _changed(last), _changed(step)
    except (ValueError, LookupError, TypeError):
        return False
    if not same or names[0] != names[1] or len(names[0]) != 1:
        return False
    db.execute("UPDATE change SET steps = ? WHERE id = ?", (json.dumps([{**last, "after": step["after"]}]), row[0]))
    return True


def _changed(step: changes.Step) -> set[str]:
    before, after = (unpack_object(step[side]).get("values", {}) for side in ("before", "after"))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
