"""`check` on a file that need not open as a store, and may be one that SQLite itself cannot read."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from exlchat.chat.check import BrokenError, Problem, check
from exlchat.chat.database import StoreError, explained, is_damage, open_database
from exlchat.chat.salvage import found_at, salvage, wal_of
from exlchat.chat.salvage_pages import is_cut


def check_file(path: Path, *, repair: bool = False) -> list[Problem]:
    """As `check`, without what a store does when it opens: ending the answers of programs that died writes, and what is
    written passes through the very index that may be damaged.

    With `repair`, what SQLite cannot read or mend is salvaged into a new file.

    Raises:
        StoreError: it cannot even be looked at, or the copy before a repair cannot be made.
    """
    found = found_at(path) if repair else None
    try:
        _require_all_of_it(path)
        with closing(open_database(path)) as db, explained(path):
            return check(db, path, repair=repair)
    except BrokenError as error:
        if found is None:
            return [Problem(line) for line in error.lines]
    except StoreError as error:
        if found is None or not is_damage(error.__cause__):
            raise
    return salvage(path, found)


def _require_all_of_it(path: Path) -> None:
    """SQLite takes what is missing of a page for zeros, and finds nothing wrong with a text of them.

    Raises:
        BrokenError: the file is shorter than it says itself.
    """
    if not path.exists():
        return
    wal = wal_of(path)
    with explained(path), path.open("rb") as file:
        head = file.read(100)
        size = file.seek(0, os.SEEK_END)
        written_since = wal.read_bytes() if wal.exists() else b""
    if size and is_cut(head, size, written_since):
        raise BrokenError(["the end of the file is missing"])
