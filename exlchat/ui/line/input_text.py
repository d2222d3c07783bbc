"""Whether Enter sends what is typed, or goes on with another line."""

from __future__ import annotations

import re
from typing import Final

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def fence_is_open(text: str) -> bool:
    opened = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        marks, rest = found[1], found[2]
        if not opened:
            # A back quote in what follows the marks makes it inline code, as in Markdown.
            opened = marks if marks[0] == "~" or "`" not in rest else ""
        elif marks[0] == opened[0] and len(marks) >= len(opened) and not rest.strip():
            opened = ""
    return bool(opened)


def goes_on(text: str) -> str | None:
    """`text` ready for another line, when its end says that one follows; `None` when it is to be sent."""
    if text.endswith("\\"):
        return text[:-1] + "\n"
    return text + "\n" if fence_is_open(text) else None
