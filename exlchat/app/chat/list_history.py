"""What was done to the list of conversations in this run, and how it is taken back. No terminal library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class ListChange:
    """One thing that was done, to one conversation or several.

    Args:
        back: each takes a part of it back.
        told: what is said when all is back.
        opens: the conversation that is opened then, if one is.
    """

    back: Sequence[Callable[[], object]]
    told: str
    opens: str | None = None


class ListHistory:
    """Of one session."""

    def __init__(self) -> None:
        self._changes: list[ListChange] = []
        self.is_newest = False
        """Whether nothing else that can be undone was done since the last of these."""

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, change: ListChange) -> None:
        self._changes.append(change)
        self.is_newest = True

    def undo(self) -> ListChange | None:
        """Takes back what was done last, and says what that was; `None` where nothing was.

        Raises:
            StoreError: it cannot be written; it can be tried again.
        """
        if not self._changes:
            return None
        for back in self._changes[-1].back:
            back()
        self.is_newest = False
        return self._changes.pop()
