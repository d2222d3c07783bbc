"""`check` on a file that need not open as a store: nothing but SQLite itself has to get along with it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from exlchat.chat.check import Problem, check
from exlchat.chat.database import explained, open_database


def check_file(path: Path, *, repair: bool = False) -> list[Problem]:
    """As `check`, without what a store does when it opens: ending the answers of programs that died writes, and what is
    written passes through the very index that may be damaged.

    Raises:
        StoreError: it cannot even be looked at, or the copy before a repair cannot be made.
    """
    with closing(open_database(path)) as db, explained(path):
        return check(db, path, repair=repair)
