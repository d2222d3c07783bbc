"""A paste for prompt_toolkit in one piece.

It gathers a paste itself, but copies and searches all that has come so far with every piece that it reads: of a paste
of five million characters it makes more than half a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser

if TYPE_CHECKING:
    from prompt_toolkit.input import Input

_BEGINS: Final = "\x1b[200~"
_ENDS: Final = "\x1b[201~"


def take_pastes_whole(source: Input) -> None:
    """Have an input hand a paste on when all of it has come; of one that reads no terminal nothing changes."""
    if isinstance(source, Vt100Input):
        source.vt100_parser = WholePastes(source.vt100_parser)


class WholePastes(Vt100Parser):
    """Stands before another parser, and keeps the pieces of a paste until its end."""

    def __init__(self, parser: Vt100Parser) -> None:
        super().__init__(parser.feed_key_callback)
        self._parser = parser
        self._pieces: list[str] = []
        self._tail = ""
        """The last characters of the paste, which may be the beginning of its end mark."""

    def feed(self, data: str) -> None:
        while data:
            if self._pieces:
                data = self._gather(data)
                continue
            before, begins, after = data.partition(_BEGINS)
            self._parser.feed(before)
            if begins:
                self._pieces, self._tail = [begins], ""
            data = after

    def flush(self) -> None:
        """An escape that stands alone is a key."""
        self._parser.flush()

    def _gather(self, data: str) -> str:
        """Take what belongs to the paste; what is left."""
        seen = self._tail + data
        at = seen.find(_ENDS)
        if at < 0:
            self._pieces.append(data)
            self._tail = seen[1 - len(_ENDS) :]
            return ""
        end = at + len(_ENDS) - len(self._tail)
        whole = "".join([*self._pieces, data[:end]])
        self._pieces = []
        self._parser.feed(whole)
        return data[end:]
