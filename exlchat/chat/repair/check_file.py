"""`check` on a file that need not open as a store, and may be one that SQLite itself cannot read."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from exlchat.chat.repair.check import BrokenError, Problem, check
from exlchat.chat.repair.salvage import found_at, salvage, wal_of, whole
from exlchat.chat.repair.sqlite_pages import is_cut
from exlchat.chat.store.database import StoreError, explained, is_damage, open_database
from exlchat.untrusted.files import open_plain

_LOOKS = 20
_LOOK_AGAIN_SECONDS = 0.01


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
    with explained(path):
        cut = _is_cut_now(path)
    if cut:
        raise BrokenError(["the end of the file is missing"])


def _is_cut_now(path: Path) -> bool:
    """A program that writes moves pages from the WAL into the file: only what lay still while it was read counts."""
    for _ in range(_LOOKS):
        before = _lying(path)
        with open_plain(path) as file:
            head = file.read(100)
            size = file.seek(0, os.SEEK_END)
        written_since = whole(wal_of(path))
        if not size or not is_cut(head, size, written_since):
            return False
        if _lying(path) == before:
            return True
        time.sleep(_LOOK_AGAIN_SECONDS)
    # Whoever writes into it all the time has it open, and SQLite says what is wrong.
    return False


def _lying(path: Path) -> list[tuple[int, int, int] | None]:
    """What changes when the file or its WAL is written."""
    found: list[tuple[int, int, int] | None] = []
    for file in (path, wal_of(path)):
        try:
            now = file.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((now.st_ino, now.st_size, now.st_mtime_ns))
    return found
