"""The text of a TOML file, beside what it says: in which line a key stands, and a key put where its comment is."""

from __future__ import annotations

import re
import tomllib
from typing import Any

_MOST_LINES = 2000


def line_of(text: str, *key: str) -> int | None:
    """The line, from 1, in which `key` (with the key below it, if any) begins; `None` if it is not found.

    TOML is read line by line: the first beginning of the text that is whole and has the key ends with it.
    """
    lines = text.splitlines(keepends=True)
    if len(lines) > _MOST_LINES:
        return None
    first = 0
    for end in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("".join(lines[:end]))
        except (ValueError, RecursionError):
            continue
        if _has(table, key):
            statement = range(first, end)
            return next((at + 1 for at in statement if lines[at].strip() and lines[at].lstrip()[0] != "#"), end)
        first = end
    return None


def _has(table: Any, key: tuple[str, ...]) -> bool:
    for part in key:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def below_its_comment(text: str, key: str, line: str) -> str | None:
    """`text` with `line` below the comment that has the key's default (`# key = ...`), if there is one."""
    lines = text.splitlines(keepends=True)
    comment = re.compile(rf"#\s*{re.escape(key)}\s*=")
    for at, one in enumerate(lines):
        if comment.match(one):
            ending = "" if one.endswith("\n") else "\n"
            return "".join([*lines[: at + 1], ending, f"{line}\n", *lines[at + 1 :]])
    return None
