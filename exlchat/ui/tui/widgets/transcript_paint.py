"""The last step to the screen: a line of a message, its mark at the left, what is selected, and the badge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.style import Style
    from textual.selection import Selection

    from exlchat.ui.tui.widgets.transcript_items import Role

GUTTER_WIDTH: Final = 2
_MARKS: Final[Mapping[Role, str]] = {
    "user": "▌ ",
    "assistant": "│ ",
    "thinking": "⋮ ",
    "system": "┊ ",
    "notice": "· ",
    "name": "  ",
}
"""Different characters, not colours alone: the roles stay apart on a terminal without colour."""


def framed(line: Strip | None, role: Role, mark: Style, text: Style, row: int, *, width: int) -> Strip:
    """Set a line behind the mark of its role and fill it to `width` cells. None is the blank line between messages.

    `row` names the line in selections; characters count from behind the mark.
    """
    if line is None:
        return Strip([Segment(" " * width, text)], width).apply_offsets(0, row)
    gutter = Strip([Segment(_MARKS[role], mark)], GUTTER_WIDTH).apply_offsets(-GUTTER_WIDTH, row)
    return Strip.join([gutter, line.apply_offsets(0, row)]).adjust_cell_length(width, text)


def selected(line: Strip, text: str, selection: Selection, row: int, style: Style) -> Strip:
    """Mark the selected characters of a framed line; `text` is its text without the mark of the role."""
    span = selection.get_span(row)
    if span is None:
        return line
    start = max(span[0], 0)
    end = len(text) if span[1] < 0 else min(span[1], len(text))
    if start >= end:
        return line
    left = GUTTER_WIDTH + cell_len(text[:start])
    right = min(GUTTER_WIDTH + cell_len(text[:end]), line.cell_length)
    # Parts of a divided segment all carry its first offset; the next mouse move would be read from them.
    return restyled(line, left, right, style).apply_offsets(-GUTTER_WIDTH, row)


def restyled(line: Strip, left: int, right: int, style: Style) -> Strip:
    if left >= right or right > line.cell_length:
        return line
    before, inside, after = line.divide([left, right, line.cell_length])
    marked = [Segment(part, (own or style) + style) for part, own, _ in inside]
    return Strip.join([before, Strip(marked, inside.cell_length), after])


def badged(line: Strip, label: str, style: Style) -> Strip:
    width = line.cell_length
    size = min(cell_len(label), width)
    return Strip.join([line.crop(0, width - size), Strip([Segment(label, style)]).crop(0, size)])


def badge_text(lines: int) -> str:
    return f" ↓ {lines} new line{'' if lines == 1 else 's'} below "
