"""Finding a text in the transcript: where it is painted, and going from one place to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.strip import Strip

from exlchat.ui.tui.widgets.transcript_cursor import CursorView
from exlchat.ui.tui.widgets.transcript_paint import GUTTER_WIDTH, restyled
from exlchat.ui.tui.widgets.transcript_select import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class FindView(CursorView):
    """What is looked for is marked wherever it is seen; capitals do not count.

    A text that is broken across two lines on the screen is found, but not marked.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._needle = ""
        self._found_line: int | None = None

    def look_for(self, text: str) -> tuple[int, ...]:
        """Mark a text, "" none; the places of the messages that have it."""
        self._needle = text.casefold()
        self.refresh()
        return tuple(self._having()) if self._needle else ()

    def go_to_found(self, by: int) -> int | None:
        """Go to the next line (+1) or the one before (-1) that has the text; the place of its message, if any has it.

        From the last one it goes on at the first.
        """
        having = list(self._having()) if self._needle else []
        if not having:
            return None
        key = self.cursor
        at = self._messages.index(key) if key is not None else (-1 if by > 0 else len(self._messages))
        if at in having and (line := self._line_with(at, by, beside=self._found_line)) is not None:
            return self._show_line(at, line)
        others = [place for place in having if (place > at if by > 0 else place < at)]
        place = (others[0] if by > 0 else others[-1]) if others else having[0 if by > 0 else -1]
        self.move_cursor_to(self._messages[place].key)
        return self._show_line(place, self._line_with(place, by, beside=None) or 0)

    def _show_line(self, place: int, line: int) -> int:
        self._found_line = line
        top, room = self.scroll_offset.y, self.window.height
        at = self._messages.heights.start(place) + line
        if not top <= at < top + room:
            self.scroll_to(y=max(at - room // 3, 0), animate=False)
        self.refresh()
        return place

    def _line_with(self, place: int, by: int, *, beside: int | None) -> int | None:
        """The nearest line of a message that has the text, behind or before the line `beside`, if that is given."""
        message = self._messages[place]
        if message.view == "folded":
            self.show_as(message.key, "whole")
        if message.code_folded:
            self.fold_code(message.key)
        self._ensure_layout(place)
        lines = [number for number, strip in enumerate(message.lines) if self._needle in strip.text.casefold()]
        if beside is not None:
            lines = [number for number in lines if (number > beside if by > 0 else number < beside)]
        return (lines[0] if by > 0 else lines[-1]) if lines else None

    def move_cursor_to(self, key: str) -> None:
        """See there; the next search begins at its first line."""
        self._found_line = None
        super().move_cursor_to(key)

    def _having(self) -> Iterator[int]:
        return (place for place in range(len(self._messages)) if self._needle in self._messages[place].text.casefold())

    def _line_at(self, position: int, width: int) -> Strip:
        strip = super()._line_at(position, width)
        if not self._needle or position >= self._messages.heights.total:
            return strip
        index, number = self._messages.heights.find(position)
        line = self._messages[index].line(number)
        if line is None:
            return strip
        text = line.text
        folded = text.casefold()
        if len(folded) != len(text):
            # Where folding changes lengths (ß), places would be wrong.
            folded = text.lower()
        at = folded.find(self._needle)
        while at >= 0:
            left = GUTTER_WIDTH + cell_len(text[:at])
            strip = restyled(strip, left, left + cell_len(text[at : at + len(self._needle)]), self._looks.found)
            at = folded.find(self._needle, at + len(self._needle))
        return strip.apply_offsets(-GUTTER_WIDTH, row_of(index, number))
