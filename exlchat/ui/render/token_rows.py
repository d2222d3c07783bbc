"""The tokens of a text in rows of so many cells, and the way from one token to the next, also up and down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, chop_cells

from exlchat.untrusted.text import visible

_NOTHING = "◌"
"""Stands for a token without a text of its own: it makes a character with those behind it."""
END = "■"
"""Stands for the place behind the last token."""


@dataclass(frozen=True, slots=True)
class TokenPart:
    """A token, or as much of it as stands in one row, from a column on."""

    token: int
    text: str
    column: int

    @property
    def end(self) -> int:
        return self.column + cell_len(self.text)


class TokenRows:
    """Broken before words where a row has any; a token that is longer than a row is broken anywhere.

    Args:
        pieces: the text of each token.
        width: cells of a row.
    """

    def __init__(self, pieces: Sequence[str], width: int) -> None:
        self._width = max(width, 2)
        self.rows: list[list[TokenPart]] = [[]]
        for token, piece in enumerate(pieces):
            self._add(token, piece)
        self._row_of: dict[int, int] = {}
        for number, row in enumerate(self.rows):
            for part in row:
                self._row_of.setdefault(part.token, number)

    def row_of(self, token: int) -> int:
        return self._row_of[token]

    def beside(self, token: int, by: int) -> int:
        """The token that stands so many rows above (-) or below (+), as far as there are rows."""
        number = self.row_of(token)
        here = next(part for part in self.rows[number] if part.token == token)
        other = min(max(number + by, 0), len(self.rows) - 1)
        step = 1 if by > 0 else -1
        while other != number:
            nearest = min(self.rows[other], key=lambda part: abs(part.column - here.column), default=None)
            if nearest is not None and nearest.token != token:
                return nearest.token
            other += step
            if not 0 <= other < len(self.rows):
                break
        return token

    def at(self, row: int, column: int) -> int | None:
        if not 0 <= row < len(self.rows):
            return None
        return next((part.token for part in self.rows[row] if part.column <= column < part.end), None)

    def _add(self, token: int, piece: str) -> None:
        lines = _shown(piece).split("\n")
        for number, line in enumerate(lines):
            last = number == len(lines) - 1
            text = line if last else f"{line}⏎"
            if text:
                self._put(token, text)
            if not last:
                self.rows.append([])

    def _put(self, token: int, text: str) -> None:
        while self._used + cell_len(text) > self._width and self.rows[-1]:
            self._break(text)
        for rest in chop_cells(text, self._width):
            if self._used and self._used + cell_len(rest) > self._width:
                self.rows.append([])
            self.rows[-1].append(TokenPart(token, rest, self._used))

    @property
    def _used(self) -> int:
        return self.rows[-1][-1].end if self.rows[-1] else 0

    def _break(self, text: str) -> None:
        """Begins a row with the word that goes on with `text`; where that fills all of the row, within the word."""
        row = self.rows[-1]
        words = [at for at, part in enumerate(row) if at and part.text[0].isspace()]
        at = len(row) if text[0].isspace() or not words else words[-1]
        moved, shift = row[at:], row[at].column if at < len(row) else 0
        del row[at:]
        self.rows.append([replace(part, column=part.column - shift) for part in moved])


def _shown(piece: str) -> str:
    """Text of a token as it stands among the others: line ends alone are kept to break the row."""
    text = visible(piece.replace("\r\n", "\n").replace("\r", "\n")).replace("\t", "⇥")
    return text if "\n" in text or cell_len(text) else _NOTHING
