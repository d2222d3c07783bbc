"""The open file of a store: one connection, one lock, transactions."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from exlchat.chat import database, statements
from exlchat.chat.writer import Writer


class StoreFile:
    """What the parts of `ConversationStore` stand on."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time, or_read: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._writer = Writer(path)
        self._db = database.open_database(path, or_read=or_read)

    def close(self) -> None:
        """Let go of the file; every later call raises `StoreError`."""
        with self._lock, database.explained(self.path):
            self._db.close()
            self._writer.leave()

    def recover(self) -> int:
        """Make answers whose writer has died `partial` (without any text: remove them). Returns how many were kept."""
        with self._transaction(write=False) as db:
            waiting: list[tuple[str, str]] = db.execute("SELECT message_id, writer FROM answer_in_progress").fetchall()
        with database.explained(self.path):
            dead = [message_id for message_id, writer in waiting if not self._writer.is_alive(writer)]
        if not dead:
            return 0
        with self._transaction() as db:
            return sum([statements.recover_answer(db, message_id) for message_id in dead])

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock, database.transaction(self._db, self.path, write=write):
            yield self._db


def new_id() -> str:
    """A name for a conversation or a message that no other program gives."""
    return uuid.uuid4().hex
