"""The schema of the conversation database: what its columns hold, and the statements that lead to each version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from exlchat.chat.model import MessageStatus, Role, TitleBy

Value = str | bytes | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """What a column is to hold, for whatever reads, writes, checks or salvages it.

    Args:
        name: as SQL has it.
        kind: a `time` is in Unix seconds, a `flag` 0 or 1; `ids` are packed token ids, `object` and `record` are JSON.
        may_miss: whether NULL is a value.
        words: all that a text may be, where it may not be any.
        since: the schema that brought it.
    """

    name: str
    kind: Literal["text", "time", "flag", "ids", "object", "record"]
    may_miss: bool = False
    words: tuple[str, ...] = ()
    since: int = 1

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "object", "record")

    @property
    def types(self) -> tuple[type, ...]:
        some = (str,) if self.is_text else {"time": (int, float), "flag": (int,), "ids": (bytes,)}[self.kind]
        return (*some, type(None)) if self.may_miss else some

    @property
    def least(self) -> Value:
        """The value that says nothing; of a time there is none."""
        if self.may_miss or self.kind == "time":
            return None
        return 0 if self.kind == "flag" else b"" if self.kind == "ids" else ""

    def fits(self, value: object) -> bool:
        if value is None or not isinstance(value, self.types):
            return value is None and self.may_miss
        return value in (0, 1) if self.kind == "flag" else not self.words or value in self.words


CONVERSATION = (
    Column("id", "text"),
    Column("title", "text", may_miss=True),
    Column("created_at", "time"),
    Column("updated_at", "time"),
    Column("deleted_at", "time", may_miss=True),
    Column("tip_id", "text", may_miss=True),
    Column("pinned", "flag", since=4),
    Column("archived_at", "time", may_miss=True, since=4),
    Column("title_by", "text", may_miss=True, words=get_args(TitleBy), since=4),
    Column("draft", "text", since=4),
    Column("foreign_json", "object", may_miss=True, since=4),
)
"""The columns of each table in their order: a row of before a migration ends earlier."""

MESSAGE = (
    Column("id", "text"),
    Column("conversation_id", "text"),
    Column("parent_id", "text", may_miss=True),
    Column("role", "text", words=get_args(Role)),
    Column("text", "text"),
    Column("created_at", "time"),
    Column("status", "text", words=get_args(MessageStatus)),
    Column("token_ids", "ids"),
    Column("record", "record", may_miss=True),
    Column("pinned", "flag", since=2),
    Column("summary", "text", may_miss=True, since=3),
    Column("thinking", "text", may_miss=True, since=4),
    Column("persona", "object", may_miss=True, since=4),
    Column("edited_from", "text", may_miss=True, since=4),
    Column("deleted_at", "time", may_miss=True, since=4),
    Column("foreign_json", "object", may_miss=True, since=4),
    Column("settings", "object", may_miss=True, since=5),
    Column("left_out", "flag", since=5),
)
IN_PROGRESS = (
    Column("message_id", "text"),
    Column("writer", "text"),
    Column("previous_tip_id", "text", may_miss=True),
)
TAG = (Column("conversation_id", "text", since=4), Column("name", "text", since=4))
CHANGE = (
    # Its id is the rowid.
    Column("conversation_id", "text", since=4),
    Column("what", "text", since=4),
    Column("changed_at", "time", since=4),
    Column("undone", "flag", since=4),
    Column("steps", "text", since=4),
)

FILL_INDEX = (
    "DELETE FROM searchable",
    "INSERT INTO searchable (message_id) SELECT id FROM message WHERE status <> 'streaming' ORDER BY rowid",
    "INSERT INTO searchable (conversation_id) SELECT id FROM conversation WHERE title IS NOT NULL ORDER BY rowid",
    "INSERT INTO search_index (search_index) VALUES ('rebuild')",
)
"""Make the full-text index anew of what the tables hold."""

_SEARCH_INDEX = """
    CREATE VIRTUAL TABLE search_index USING fts5 (
        text, thinking, title, content = 'searchable_text', content_rowid = 'id',
        tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3'
    )
    """

INDEX_ANEW = (
    # A damaged one cannot be dropped: SQLite opens it for that.
    *(f"DROP TABLE IF EXISTS search_index_{part}" for part in ("data", "idx", "docsize", "config")),
    "PRAGMA writable_schema = ON",
    "DELETE FROM sqlite_master WHERE name = 'search_index'",
    "PRAGMA writable_schema = RESET",
    _SEARCH_INDEX,
    *FILL_INDEX,
)
"""The same where the index itself is damaged."""

_SCHEMA_1 = (
    """
    CREATE TABLE conversation (
        id TEXT NOT NULL PRIMARY KEY,
        title TEXT,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        deleted_at REAL,
        tip_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED
    )
    """,
    "CREATE INDEX conversation_tip ON conversation (tip_id)",
    """
    CREATE TABLE message (
        id TEXT NOT NULL PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversation (id) DEFERRABLE INITIALLY DEFERRED,
        parent_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        text TEXT NOT NULL,
        created_at REAL NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('complete', 'streaming', 'partial')),
        token_ids BLOB NOT NULL,
        record TEXT
    )
    """,
    "CREATE INDEX message_conversation ON message (conversation_id, role)",
    "CREATE INDEX message_parent ON message (parent_id)",
    """
    CREATE TABLE answer_in_progress (
        message_id TEXT NOT NULL PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
        writer TEXT NOT NULL,
        previous_tip_id TEXT
    )
    """,
)

_SCHEMA_2 = ("ALTER TABLE message ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))",)

# With the message before which it ends, so that it outlives an answer that came to nothing, and serves each branch.
_SCHEMA_3 = ("ALTER TABLE message ADD COLUMN summary TEXT",)

# Columns behind the text of a message are read through its overflow pages; what lists and walks ask is in the indices.
_SCHEMA_4 = (
    "ALTER TABLE message ADD COLUMN thinking TEXT",
    "ALTER TABLE message ADD COLUMN persona TEXT",
    "ALTER TABLE message ADD COLUMN edited_from TEXT",
    "ALTER TABLE message ADD COLUMN deleted_at REAL",
    "ALTER TABLE message ADD COLUMN foreign_json TEXT",
    "DROP INDEX message_conversation",
    "CREATE INDEX message_conversation ON message (conversation_id, role, deleted_at)",
    "DROP INDEX message_parent",
    "CREATE INDEX message_parent ON message (parent_id, deleted_at, id)",
    "CREATE INDEX message_deleted ON message (deleted_at) WHERE deleted_at IS NOT NULL",
    "ALTER TABLE conversation ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))",
    "ALTER TABLE conversation ADD COLUMN archived_at REAL",
    "ALTER TABLE conversation ADD COLUMN title_by TEXT CHECK (title_by IN ('user', 'model', 'first line'))",
    "ALTER TABLE conversation ADD COLUMN draft TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE conversation ADD COLUMN foreign_json TEXT",
    """
    UPDATE conversation SET title_by = CASE WHEN title = title_of((
        SELECT text FROM message WHERE conversation_id = conversation.id AND role = 'user' ORDER BY rowid LIMIT 1
    )) THEN 'first line' ELSE 'user' END WHERE title IS NOT NULL
    """,
    """
    CREATE TABLE tag (
        conversation_id TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (conversation_id, name)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE change (
        id INTEGER PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversation (id) ON DELETE CASCADE,
        what TEXT NOT NULL,
        changed_at REAL NOT NULL,
        undone INTEGER NOT NULL DEFAULT 0 CHECK (undone IN (0, 1)),
        steps TEXT NOT NULL
    )
    """,
    "CREATE INDEX change_conversation ON change (conversation_id, undone, id)",
    # The rowid of a table with a text key may be numbered anew by VACUUM; an index must not hang on it.
    """
    CREATE TABLE searchable (
        id INTEGER PRIMARY KEY,
        message_id TEXT UNIQUE,
        conversation_id TEXT UNIQUE
    )
    """,
    """
    CREATE VIEW searchable_text AS
    SELECT s.id AS id, m.text AS text, m.thinking AS thinking, c.title AS title FROM searchable s
    LEFT JOIN message m ON m.id = s.message_id LEFT JOIN conversation c ON c.id = s.conversation_id
    """,
    _SEARCH_INDEX,
    """
    CREATE TRIGGER message_added AFTER INSERT ON message WHEN new.status <> 'streaming' BEGIN
        INSERT INTO searchable (message_id) VALUES (new.id);
        INSERT INTO search_index (rowid, text, thinking)
        SELECT id, new.text, new.thinking FROM searchable WHERE message_id = new.id;
    END
    """,
    """
    CREATE TRIGGER answer_closed AFTER UPDATE OF status ON message
    WHEN old.status = 'streaming' AND new.status <> 'streaming' BEGIN
        INSERT INTO searchable (message_id) VALUES (new.id);
        INSERT INTO search_index (rowid, text, thinking)
        SELECT id, new.text, new.thinking FROM searchable WHERE message_id = new.id;
    END
    """,
    """
    CREATE TRIGGER message_removed AFTER DELETE ON message WHEN old.status <> 'streaming' BEGIN
        INSERT INTO search_index (search_index, rowid, text, thinking)
        SELECT 'delete', id, old.text, old.thinking FROM searchable WHERE message_id = old.id;
        DELETE FROM searchable WHERE message_id = old.id;
    END
    """,
    """
    CREATE TRIGGER title_given AFTER INSERT ON conversation WHEN new.title IS NOT NULL BEGIN
        INSERT INTO searchable (conversation_id) VALUES (new.id);
        INSERT INTO search_index (rowid, title)
        SELECT id, new.title FROM searchable WHERE conversation_id = new.id;
    END
    """,
    """
    CREATE TRIGGER title_changed AFTER UPDATE OF title ON conversation WHEN new.title IS NOT old.title BEGIN
        INSERT INTO search_index (search_index, rowid, title)
        SELECT 'delete', id, old.title FROM searchable WHERE conversation_id = old.id;
        DELETE FROM searchable WHERE conversation_id = old.id;
        INSERT INTO searchable (conversation_id) SELECT new.id WHERE new.title IS NOT NULL;
        INSERT INTO search_index (rowid, title)
        SELECT id, new.title FROM searchable WHERE conversation_id = new.id;
    END
    """,
    """
    CREATE TRIGGER title_removed AFTER DELETE ON conversation BEGIN
        INSERT INTO search_index (search_index, rowid, title)
        SELECT 'delete', id, old.title FROM searchable WHERE conversation_id = old.id;
        DELETE FROM searchable WHERE conversation_id = old.id;
    END
    """,
    *FILL_INDEX,
)

# How a conversation is spoken to from a message on, with the message, so that it belongs to the branch.
_SCHEMA_5 = (
    "ALTER TABLE message ADD COLUMN settings TEXT",
    "ALTER TABLE message ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0 CHECK (left_out IN (0, 1))",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, _SCHEMA_5)
"""Entry n holds the statements that turn schema n into schema n + 1; `PRAGMA user_version` counts them.

Never change one that was released. The columns above say what the last one leads to.
"""
