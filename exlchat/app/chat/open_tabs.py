"""Conversations that are open beside each other, and which of them is shown; kept for the next start by their ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MOST_TABS = 20
"""What stands in a row still has a name there."""
_LARGEST = 100_000
"""Bytes."""


class OpenTabs:
    """Ids of conversations in their order, no two the same; `None` is the one in which nothing was said yet.

    Losing the file costs nothing, so one that cannot be read or written is none.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` is of the file that keeps them; `None` keeps them in memory only."""
        self._path = path
        self._idents: list[str | None] = [None]
        self._at = 0
        self._on_disk: str | None = None

    @property
    def idents(self) -> Sequence[str | None]:
        return tuple(self._idents)

    @property
    def are_several(self) -> bool:
        return len(self._idents) > 1

    @property
    def is_full(self) -> bool:
        return len(self._idents) >= MOST_TABS

    def show(self, ident: str | None) -> None:
        """A conversation is shown: in the tab that it has, else in the one that was shown before."""
        if ident in self._idents:
            self._at = self._idents.index(ident)
        else:
            self._idents[self._at] = ident

    def add(self, ident: str | None) -> None:
        """Show a conversation in a tab of its own, behind the one that is shown, unless it has one."""
        if ident not in self._idents:
            self._idents.insert(self._at + 1, ident)
        self._at = self._idents.index(ident)

    def close(self) -> None:
        """Close the tab that is shown, of several; the next one is shown, or the last."""
        del self._idents[self._at]
        self._at = min(self._at, len(self._idents) - 1)

    @property
    def shown(self) -> str | None:
        return self._idents[self._at]

    def drop(self, is_gone: Callable[[str], bool]) -> list[str]:
        """Close tabs of conversations that are gone, but for the one that is shown; the ids of those."""
        shown = self.shown
        gone = [one for one in self._idents if one is not None and one != shown and is_gone(one)]
        self._idents = [one for one in self._idents if one not in gone]
        self._at = self._idents.index(shown)
        return gone

    # On disk

    def read(self) -> None:
        """Take over those of the last start."""
        if self._path is None:
            return
        try:
            content = read_json_file(self._path, largest=_LARGEST, kind="list of tabs")
        except UntrustedFileError:
            return
        if not isinstance(content, dict) or not isinstance(content.get("tabs"), list):
            return
        idents = list(dict.fromkeys(one for one in content["tabs"] if isinstance(one, str) and one))[:MOST_TABS]
        if idents:
            self._idents = [*idents]
            self._at = idents.index(content["shown"]) if content.get("shown") in idents else 0

    def keep(self) -> None:
        """Put them on disk; one alone is not kept: a start begins a new conversation then, as always."""
        idents = [one for one in self._idents if one is not None]
        kept = {"tabs": idents, "shown": self.shown} if len(idents) > 1 else {"tabs": []}
        text = json.dumps(kept, indent=1) + "\n"
        if self._path is None or text == self._on_disk or (not kept["tabs"] and not self._path.exists()):
            return
        try:
            paths.atomic_write(self._path, text)
        except paths.FolderError:
            return
        self._on_disk = text
