"""The open file of a store: one connection, one lock, transactions."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.store import database, statements, tree_rows
from exlchat.chat.store.open_files import OpenFiles
from exlchat.chat.store.writer import Writer

if TYPE_CHECKING:
    from exlchat.chat.model import ConversationTree


class StoreFile:
    """What the parts of `ConversationStore` stand on."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time, or_read: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._writer = Writer(path)
        self._db = database.open_database(path, or_read=or_read)
        self._files = OpenFiles(path)

    def close(self) -> None:
        """Let go of the file; every later call raises `StoreError`."""
        with self._lock, database.explained(self.path):
            replaced = self._files.replaced
            if replaced:
                self._complete_lost_file()
            self._db.close()
            if replaced:
                self._files.remove_beside()
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

    def require_file(self) -> None:
        """See that what is written is kept.

        Raises:
            LostFileError: the file was removed or replaced since it was opened.
        """
        self._files.require_file()

    def begin_anew(self, trees: Sequence[ConversationTree]) -> list[str]:
        """Go on with the file that lies at the path now, made if there is none, and keep these conversations in it.

        The ids by which they are known there. One that is there already with all its messages is not put there twice.

        Raises:
            StoreError: that cannot be done; the store is as it was.
        """
        if self.path is not None:
            paths.ensure_folder(self.path.parent)
        with self._lock, database.explained(self.path):
            self._complete_lost_file()
            self._files.remove_beside()
        new = database.open_database(self.path)
        try:
            with database.transaction(new, self.path, write=True):
                now = self._clock()
                ids = [
                    str(tree.id) if _holds(new, tree) else tree_rows.write_tree(new, tree, new_id=new_id, now=now)
                    for tree in trees
                ]
        except BaseException:
            new.close()
            raise
        with self._lock, database.explained(self.path):
            self._writer.leave()
            self._db.close()
            self._db, self._files = new, OpenFiles(self.path)
        return ids

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """What is read of a lost file is all that there is of it; nothing is written into one."""
        with self._lock:
            if write:
                self._files.require_file()
                if self._files.some_beside_are_lost:
                    self._open_again()
            with database.transaction(self._db, self.path, write=write):
                yield self._db
            if write:
                # What came between the two looks is not said to be kept.
                self._files.require_file()

    def _complete_lost_file(self) -> None:
        """Have the file that was open, wherever it is now, hold what is still in its WAL."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _open_again(self) -> None:
        """Bring what is in a WAL that has no name any more into the file, and go on with one that others see too.

        Raises:
            StoreError: another program has begun to write meanwhile.
        """
        with database.explained(self.path):
            busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise database.LostFileError(
                    f"{self.path}: the files beside it, -wal and -shm, were removed while it was open, and another "
                    "program uses it; close that one and try again"
                )
            self._db.close()
            self._db = database.open_database(self.path)
            self._files = OpenFiles(self.path)


def new_id() -> str:
    """A name for a conversation or a message that no other program gives."""
    return uuid.uuid4().hex


def _holds(db: sqlite3.Connection, tree: ConversationTree) -> bool:
    """Whether a conversation is there with all its messages, as in a copy of the file."""
    try:
        there = tree_rows.read_tree(db, tree.id or "")
    except database.MissingRowError:
        return False
    said = {(one.id, one.text) for one in there.messages}
    return all((one.id, one.text) in said for one in tree.messages)
