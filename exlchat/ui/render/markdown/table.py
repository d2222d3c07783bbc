"""A table's cells to lines: columns that fit the width, or one record under another where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.segment import Segment

from exlchat.ui.render.markdown.wrap import Line, Piece, split_lines, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style

    from exlchat.ui.render.markdown.blocks import Align

Cell = list[Piece]
MIN_COLUMN: Final = 5
_SEPARATOR: Final = " │ "


def table_lines(
    head: Sequence[Cell], rows: Sequence[Sequence[Cell]], aligns: Sequence[Align], width: int, frame: Style
) -> list[Line]:
    """Lay out a table in `width` cells. `frame` styles its lines; rows are ruled off only when a cell wraps."""
    room = width - len(_SEPARATOR) * (len(head) - 1)
    if room < MIN_COLUMN * len(head):
        return _records(head, rows, width, frame)
    natural = [max(_size(row[column]) for row in (head, *rows)) for column in range(len(head))]
    widths = fit_columns(natural, room)
    rule = [Segment("─┼─".join("─" * size for size in widths), frame)]
    wrapped = any(size < wish for size, wish in zip(widths, natural, strict=True))
    lines = [*_row(head, aligns, widths, frame), rule]
    for index, row in enumerate(rows):
        if wrapped and index:
            lines.append([Segment("┄┼┄".join("┄" * size for size in widths), frame)])
        lines += _row(row, aligns, widths, frame)
    return lines


def fit_columns(natural: Sequence[int], room: int) -> list[int]:
    """Share `room` cells: narrow columns get what they ask for, the others equal parts of the rest.

    Expects at least one cell for each column. The sum never exceeds `room`.
    """
    widths = [0] * len(natural)
    left = room
    by_size = sorted(range(len(natural)), key=natural.__getitem__)
    for position, column in enumerate(by_size):
        widths[column] = min(max(natural[column], 1), left // (len(natural) - position))
        left -= widths[column]
    return widths


def _size(cell: Cell) -> int:
    return max(sum(cell_len(text) for text, _ in line) for line in split_lines(cell))


def _row(cells: Sequence[Cell], aligns: Sequence[Align], widths: Sequence[int], frame: Style) -> list[Line]:
    columns = [wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    lines: list[Line] = []
    for index in range(max(map(len, columns))):
        line: Line = []
        for number, (column, align, size) in enumerate(zip(columns, aligns, widths, strict=True)):
            if number:
                line.append(Segment(_SEPARATOR, frame))
            line += _aligned(column[index] if index < len(column) else [], align, size, frame)
        lines.append(line)
    return lines


def _aligned(line: Line, align: Align, size: int, frame: Style) -> Line:
    blank = max(0, size - sum(segment.cell_length for segment in line))
    left = {"left": 0, "right": blank, "center": blank // 2}[align]
    return [
        *([Segment(" " * left, frame)] if left else []),
        *line,
        *([Segment(" " * (blank - left), frame)] if blank > left else []),
    ]


def _records(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], width: int, frame: Style) -> list[Line]:
    """For narrow screens: each row as lines of "head: cell"."""
    if not rows:
        return [line for cell in head for line in wrap(cell, width)]
    lines: list[Line] = []
    for index, row in enumerate(rows):
        if index:
            lines.append([Segment("┄" * width, frame)])
        for name, cell in zip(head, row, strict=True):
            lines += wrap([*name, (": ", frame), *cell], width)
    return lines
