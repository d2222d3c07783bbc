"""The database of `llm`, opened so that nothing in it can act and nothing beside it is written."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from exlchat.chat.exchange.limits import FILE_BYTES, ExchangeError
from exlchat.chat.exchange.raw import reason_of
from exlchat.untrusted.files import UntrustedFileError, check_plain

_SECONDS = 20.0
_STEPS_BETWEEN_LOOKS = 100_000
_ROWS = 2_000_000
_VALUE_BYTES = 64 * 1024 * 1024
_COMPUTED = frozenset({2, 3})
"""`PRAGMA table_xinfo` marks columns with these whose values are computed when they are read."""


class LlmDatabase:
    """Tables of a database, as rows by column name; only real tables, because views and computed columns run SQL."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows = 0
        self._characters = 0
        self._tables = {
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        }

    def has(self, *tables: str) -> bool:
        """Whether all of them are there."""
        return self._tables.issuperset(tables)

    def columns(self, table: str) -> list[str]:
        """Names of a table's columns.

        Raises:
            ExchangeError: some are computed when they are read.
        """
        found = [(str(row[1]), int(row[6])) for row in self._db.execute(f'PRAGMA table_xinfo("{table}")')]
        if any(hidden in _COMPUTED for _, hidden in found):
            raise ExchangeError(f"its table {table} has computed columns, which llm does not write")
        return [name for name, _ in found]

    def rows(self, table: str, order: str) -> Iterator[dict[str, Any]]:
        """All rows; `order` is a column, used where the table has it.

        Raises:
            ExchangeError: the table is too large, or computes its columns.
        """
        # Copies of what was sent are not needed, and are most of a database.
        names = [name for name in self.columns(table) if name not in {"prompt_json", "response_json"}]
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        by = f' ORDER BY "{order}"' if order in names else ""
        for row in self._db.execute(f'SELECT {quoted} FROM "{table}"{by}'):
            self._count(row)
            yield dict(zip(names, row, strict=True))

    def _count(self, row: tuple[Any, ...]) -> None:
        self._rows += 1
        self._characters += sum(len(value) for value in row if isinstance(value, str | bytes))
        if self._rows > _ROWS or self._characters > FILE_BYTES:
            raise ExchangeError(f"it has more than {_ROWS} rows or {FILE_BYTES >> 20} MiB of text")


@contextmanager
def open_llm(path: Path) -> Iterator[LlmDatabase]:
    """Opens it to be read only, as if it never changed, so that not even a lock is taken.

    Raises:
        ExchangeError: it is damaged, or reading takes too long.
    """
    try:
        check_plain(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.text_factory = lambda content: content.decode("utf-8", "replace")
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            deadline = time.monotonic() + _SECONDS
            db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            yield LlmDatabase(db)
    except UntrustedFileError as error:
        raise ExchangeError(str(error)) from None
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        # Python cannot decode SQLite's own messages where they quote a damaged schema.
        raise ExchangeError(f"{path} cannot be read as a database ({reason_of(error)})") from None


def waiting_changes(path: Path) -> bool:
    """Whether changes lie beside the database that are not in it yet."""
    beside = path.with_name(path.name + "-wal")
    try:
        return beside.stat().st_size > 0
    except OSError:
        return False


def json_of(value: object) -> Any:
    """What a column with JSON holds; `None` for what is none."""
    if not isinstance(value, str):
        return None
    try:
        return json.loads(value, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
