"""How much of a file is looked at, and how what is wrong with it is said."""

from __future__ import annotations

from exlchat.untrusted.text import one_line

FILE_BYTES = 512 * 1024 * 1024
"""The largest file. Ten years of an export of ChatGPT are below it; all of it has to lie in memory to be read."""

YAML_CHARACTERS = 32_000_000
"""Of the largest YAML file, which takes a hundred times as long to read as JSON."""

DEPTH = 100
"""Levels of a JSON value. Of the formats read here the deepest needs about ten."""

MESSAGES = 100_000
"""Messages of one conversation, over all its branches."""

CONVERSATIONS = 100_000
"""Conversations of one file."""

ZIP_RATIO = 200
"""How many times its packed size a member of an archive may have; text packs to a tenth, seldom to a fiftieth."""

ZIP_DIRECTORY_BYTES = 16 * 1024 * 1024
"""Of an archive's list of files: 100,000 pictures of an export have some 12 MB. It is read as a whole."""

ZIP_FREE_BYTES = 16 * 1024 * 1024
"""A member that is unpacked to no more than this may have any ratio."""

PROBLEMS = 40
"""Lines about one file; what goes beyond is counted."""


class ExchangeError(Exception):
    """A file or a conversation that cannot be read or written: one line with what is wrong and how to mend it."""


class Problems:
    """Lines about what was left out or repaired, each fit for a terminal."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0
        self.lost = 0
        self.left_out = 0

    def add(self, where: str, what: str) -> None:
        """`where` names the conversation or the line of the file."""
        if len(self._lines) < PROBLEMS:
            self._lines.append(one_line(f"{where}: {what}" if where else what, 300))
        else:
            self._more += 1

    def leave_out(self, where: str, what: str, count: int = 1) -> None:
        self.left_out += count
        self.add(where, what)

    def lose(self, where: str, why: str) -> None:
        self.lost += 1
        self.add(where, f"left out: {why}")

    def lines(self) -> tuple[str, ...]:
        """All of them, the last one saying how many there were beyond `PROBLEMS`."""
        return (*self._lines, *([f"and {self._more} more problems"] if self._more else ()))
