"""Selected text. A line is named by its message and its place in it, which outlives a change of heights above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.untrusted.sanitize import normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.selection import Selection

    from exlchat.ui.tui.widgets.transcript_messages import MessageList

LINES_PER_MESSAGE: Final = 1 << 24


def row_of(message: int, line: int) -> int:
    return message * LINES_PER_MESSAGE + line


def selected_text(messages: MessageList, selection: Selection) -> str:
    """The selected lines as seen, without the marks of the roles and without blanks at line ends.

    A message that was never on screen, or not for long, is given as its source text.
    """
    rows = list(_rows(messages, selection))
    return "\n".join(rows)


def _rows(messages: MessageList, selection: Selection) -> Iterator[str]:
    first = selection.start.y // LINES_PER_MESSAGE if selection.start else 0
    last = selection.end.y // LINES_PER_MESSAGE if selection.end else len(messages) - 1
    for index in range(first, min(last, len(messages) - 1) + 1):
        message = messages[index]
        if message.layout is None:
            yield from (*printable(normalize_newlines(message.text)).split("\n"), "")
            continue
        for number in range(messages.heights[index]):
            span = selection.get_span(row_of(index, number))
            if span is None:
                continue
            line = message.line(number)
            text = line.text if line is not None else ""
            yield text[max(span[0], 0) : len(text) if span[1] < 0 else span[1]].rstrip()
