"""Where in an answer a constraint begins to hold that is not of the whole of it."""

from __future__ import annotations

from collections.abc import Sequence


class ConstraintStart:
    """Watches the tokens of one answer for the mark behind which the constraint holds.

    Args:
        marks: texts, behind which white space may follow within the same token, and ids; without any it holds at once.
    """

    def __init__(self, marks: Sequence[str | int]) -> None:
        self._texts = tuple(one for one in marks if isinstance(one, str))
        self._ids = frozenset(one for one in marks if isinstance(one, int))
        self._longest = max(map(len, self._texts), default=0)
        self._tail = ""
        self._count = 0
        self._at: int | None = None if marks else 0

    @property
    def passed(self) -> bool:
        return self._at is not None

    def push(self, token: int, text: str) -> None:
        """The next token, and what of the text may be shown with it."""
        self._count += 1
        if self._at is not None:
            return
        seen = self._tail + text
        if token in self._ids or seen.rstrip().endswith(self._texts):
            self._at = self._count
        self._tail = seen[-self._longest :] if self._longest else ""

    def back(self, count: int) -> None:
        """The last tokens have not come; none of them had a text yet."""
        self._count -= count
        if self._at is not None and self._at > self._count:
            self._at = None
