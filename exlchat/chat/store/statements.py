"""The SQL of the conversation tree. Each function runs inside a transaction that its caller holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from exlchat.chat.model import UNTITLED, AnswerRecord, Conversation, Message, MessageStatus, clean_title
from exlchat.chat.plain_text import plain
from exlchat.chat.store.database import MissingRowError
from exlchat.chat.store.rows import (
    MESSAGE_COLUMNS,
    message_values,
    pack_ids,
    pack_object,
    pack_record,
    require_kinds,
    unpack_message,
)
from exlchat.untrusted.text import storable

_COLUMNS = ", ".join(MESSAGE_COLUMNS)
_M_COLUMNS = ", ".join(f"m.{column}" for column in MESSAGE_COLUMNS)
_PUT = f"INSERT INTO message (conversation_id, {_COLUMNS}) VALUES (?{', ?' * len(MESSAGE_COLUMNS)})"


def load_conversation(db: sqlite3.Connection, conversation_id: str) -> Conversation:
    row = db.execute(
        "SELECT title, created_at, updated_at, tip_id, title_by FROM conversation WHERE id = ?", (conversation_id,)
    ).fetchone()
    if row is None:
        raise MissingRowError("conversation", conversation_id)
    title, created_at, updated_at, tip_id, title_by = row
    require_kinds(conversation_id, (title, tip_id, title_by), (created_at, updated_at))
    branch = load_branch(db, tip_id)
    return Conversation(conversation_id, title or UNTITLED, created_at, updated_at, tip_id, branch, title_by)


def load_branch(db: sqlite3.Connection, message_id: str | None) -> tuple[Message, ...]:
    """The messages from the first one to `message_id`; of a damaged tree that leads back to itself, each once."""
    # UNION, not UNION ALL, ends where such a ring closes.
    rows = db.execute(
        "WITH RECURSIVE branch (id) AS (SELECT ? UNION "
        "SELECT m.parent_id FROM branch JOIN message m ON m.id = branch.id) "
        f"SELECT {_M_COLUMNS} FROM branch JOIN message m ON m.id = branch.id",
        (message_id,),
    )
    found = {row[0]: row for row in rows}
    branch: list[Message] = []
    at = message_id
    while at is not None and at in found:
        branch.append(unpack_message(found.pop(at)))
        at = branch[-1].parent_id
    return tuple(reversed(branch))


def load_message(db: sqlite3.Connection, message_id: str) -> Message:
    row = db.execute(f"SELECT {_COLUMNS} FROM message WHERE id = ?", (message_id,)).fetchone()
    if row is None:
        raise MissingRowError("message", message_id)
    return unpack_message(row)


GONE_ON_FROM = (
    "(m.record IS NOT NULL AND EXISTS (SELECT 1 FROM message longer WHERE longer.parent_id IS m.parent_id "
    "AND longer.edited_from = m.id AND longer.deleted_at IS NULL AND longer.record IS NOT NULL "
    "AND substr(longer.text, 1, length(m.text)) = m.text))"
)
"""Whether the answer `m` was cut and another one goes on from its whole text, and stands for it from then on."""


def alternatives(db: sqlite3.Connection, message_id: str, *, gone_on_from: bool = True) -> tuple[Message, ...]:
    """Messages of the same role under the same parent, oldest first, without deleted ones.

    Without `gone_on_from` cut answers that another one goes on from are left out, unless one is the message itself.
    """
    left_out = "" if gone_on_from else f"AND (m.id = self.id OR NOT {GONE_ON_FROM}) "
    rows = db.execute(
        f"SELECT {_M_COLUMNS} FROM message m JOIN message self ON self.id = ? "
        "WHERE m.conversation_id = self.conversation_id AND m.parent_id IS self.parent_id "
        f"AND m.role = self.role AND m.deleted_at IS NULL {left_out}ORDER BY m.rowid",
        (message_id,),
    )
    return tuple(unpack_message(row) for row in rows)


def conversations_of(db: sqlite3.Connection, message_ids: Collection[str]) -> set[str]:
    """The ids of the conversations that messages belong to, hidden ones too."""
    places = ", ".join("?" * len(message_ids))
    rows = db.execute(f"SELECT conversation_id FROM message WHERE id IN ({places})", tuple(message_ids))
    return {ident for (ident,) in rows}


def tip_of(db: sqlite3.Connection, conversation_id: str) -> str | None:
    row = db.execute("SELECT tip_id FROM conversation WHERE id = ?", (conversation_id,)).fetchone()
    if row is None:
        raise MissingRowError("conversation", conversation_id)
    tip_id: str | None = row[0]
    return tip_id


def move_tip(db: sqlite3.Connection, conversation_id: str, message_id: str | None, now: float) -> None:
    """Let the branch end at a message of this conversation, or before the first one."""
    if message_id is not None:
        require_message(db, conversation_id, message_id)
    update_conversation(db, conversation_id, "tip_id = ?, updated_at = ?", (message_id, now))


def update_conversation(
    db: sqlite3.Connection, conversation_id: str, assignments: str, values: Sequence[str | float | None]
) -> None:
    """Set columns of an existing conversation; `assignments` is SQL with a question mark for each value."""
    done = db.execute(f"UPDATE conversation SET {assignments} WHERE id = ?", (*values, conversation_id))
    if done.rowcount != 1:
        raise MissingRowError("conversation", conversation_id)


def insert_message(db: sqlite3.Connection, conversation_id: str, message: Message) -> None:
    """Hang a new message into the tree and move the tip to it; a user's first one gives the title.

    What was undone can then no longer be done again: it might hide what now follows.
    """
    if message.parent_id is not None:
        require_message(db, conversation_id, message.parent_id)
    put_message(db, conversation_id, message)
    update_conversation(db, conversation_id, "tip_id = ?, updated_at = ?", (message.id, message.created_at))
    if message.role == "user":
        db.execute(
            "UPDATE conversation SET title = ?, title_by = 'first line' WHERE id = ? AND title IS NULL",
            (clean_title(message.text), conversation_id),
        )
    db.execute("DELETE FROM change WHERE conversation_id = ? AND undone = 1", (conversation_id,))


def put_message(
    db: sqlite3.Connection, conversation_id: str, message: Message, deleted_at: float | None = None
) -> None:
    """The row of a message and nothing else; hidden since `deleted_at`."""
    db.execute(_PUT, (conversation_id, *message_values(message, deleted_at)))


def conversation_messages(db: sqlite3.Connection, conversation_id: str) -> list[Message]:
    """All of a conversation, hidden ones too, in the order in which they were written."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM message WHERE conversation_id = ? ORDER BY rowid", (conversation_id,))
    return [unpack_message(row) for row in rows]


def keep_told(db: sqlite3.Connection, message_id: str, note: Mapping[str, Any]) -> None:
    values = (pack_object(note), message_id)
    if db.execute("UPDATE message SET persona = ? WHERE id = ?", values).rowcount != 1:
        raise MissingRowError("message", message_id)


def keep_summary(db: sqlite3.Connection, message_id: str, summary: str) -> None:
    values = (storable(summary), message_id)
    if db.execute("UPDATE message SET summary = ? WHERE id = ?", values).rowcount != 1:
        raise MissingRowError("message", message_id)


def write_answer(
    db: sqlite3.Connection,
    message_id: str,
    *,
    text: str,
    token_ids: Sequence[int],
    status: MessageStatus = "streaming",
    record: AnswerRecord | None = None,
    thinking: str | None = None,
) -> None:
    """Write an answer that is still `streaming`; without a record or thinking those there are stay."""
    thought = None if thinking is None else storable(thinking)
    done = db.execute(
        "UPDATE message SET text = ?, token_ids = ?, status = ?, record = coalesce(?, record), "
        "thinking = coalesce(?, thinking) WHERE id = ? AND status = 'streaming'",
        (storable(text), pack_ids(token_ids), status, pack_record(record), thought, message_id),
    )
    if done.rowcount != 1:
        raise MissingRowError("answer being written", message_id)


def discard_answer(db: sqlite3.Connection, message_id: str) -> None:
    """Remove a streaming answer and put the tip back where it was; one that was replied to only becomes `partial`."""
    row = db.execute("SELECT previous_tip_id FROM answer_in_progress WHERE message_id = ?", (message_id,)).fetchone()
    if row is None:
        raise MissingRowError("answer being written", message_id)
    db.execute("DELETE FROM answer_in_progress WHERE message_id = ?", (message_id,))
    # Of several that were begun together, each stands where the one before it stood.
    db.execute("UPDATE answer_in_progress SET previous_tip_id = ? WHERE previous_tip_id = ?", (row[0], message_id))
    if db.execute("SELECT 1 FROM message WHERE parent_id = ?", (message_id,)).fetchone():
        db.execute("UPDATE message SET status = 'partial' WHERE id = ?", (message_id,))
    else:
        back = db.execute("SELECT id FROM message WHERE id = ? AND deleted_at IS NULL", (row[0],)).fetchone()
        parent = db.execute("SELECT parent_id FROM message WHERE id = ?", (message_id,)).fetchone()
        # What it stood at before may have been deleted meanwhile; what an answer hangs on cannot be alone.
        tip_id = row[0] if back or row[0] is None else parent[0]
        _give_back_settings(db, message_id, tip_id)
        db.execute("UPDATE conversation SET tip_id = ? WHERE tip_id = ?", (tip_id, message_id))
        db.execute("DELETE FROM message WHERE id = ?", (message_id,))


def _give_back_settings(db: sqlite3.Connection, message_id: str, tip_id: str | None) -> None:
    """What was said with an answer of how the conversation is spoken to stays said, and can be undone, without it."""
    (settings,) = db.execute("SELECT settings FROM message WHERE id = ?", (message_id,)).fetchone()
    if settings is None or tip_id is None:
        return
    db.execute("UPDATE message SET settings = ? WHERE id = ?", (settings, tip_id))
    db.execute(
        "UPDATE change SET steps = replace(steps, ?, ?) WHERE what = 'settings' AND instr(steps, ?)",
        (message_id, tip_id, message_id),
    )


def recover_answer(db: sqlite3.Connection, message_id: str) -> bool:
    """Close an answer whose writer has died: whether it had text and was kept."""
    row = db.execute("SELECT text FROM message WHERE id = ? AND status = 'streaming'", (message_id,)).fetchone()
    if row is None:
        return False
    if not row[0]:
        discard_answer(db, message_id)
        return False
    db.execute("UPDATE message SET status = 'partial' WHERE id = ?", (message_id,))
    db.execute("DELETE FROM answer_in_progress WHERE message_id = ?", (message_id,))
    return True


def automatic_title(db: sqlite3.Connection, conversation_id: str) -> str | None:
    """The first line that the user said, without marks of Markdown."""
    line = first_line(db, conversation_id)
    return line if line is None else plain(line).text.strip() or line


def first_line(db: sqlite3.Connection, conversation_id: str) -> str | None:
    """The same as it was typed, which older versions took."""
    row = db.execute(
        "SELECT text FROM message WHERE conversation_id = ? AND role = 'user' AND deleted_at IS NULL "
        "ORDER BY rowid LIMIT 1",
        (conversation_id,),
    ).fetchone()
    return None if row is None else clean_title(row[0])


def require_message(db: sqlite3.Connection, conversation_id: str, message_id: str) -> None:
    """Refuses a message that is not there, was deleted, or belongs to another conversation."""
    row = db.execute(
        "SELECT conversation_id FROM message WHERE id = ? AND deleted_at IS NULL", (message_id,)
    ).fetchone()
    if row is None or row[0] != conversation_id:
        raise MissingRowError("message", message_id)
