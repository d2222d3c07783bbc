"""Finding a text in the transcript: where it is painted, and going from one place to the next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.strip import Strip

from exlchat.ui.tui.widgets.transcript_cursor import CursorView
from exlchat.ui.tui.widgets.transcript_paint import GUTTER_WIDTH, restyled
from exlchat.ui.tui.widgets.transcript_select import row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class FindView(CursorView):
    """What is looked for is marked wherever it is seen; capitals do not count.

    A text that is broken across two lines on the screen is found, but not marked.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._needles: tuple[str, ...] = ()
        self._only_words = False
        self._found_line: int | None = None

    @property
    def marks_something(self) -> bool:
        return bool(self._needles)

    def look_for(self, *texts: str, only_words: bool = False) -> tuple[int, ...]:
        """Mark these texts, "" none; the places of the messages that have one.

        Args:
            texts: capitals do not count.
            only_words: mark them where words begin so.
        """
        self._needles = tuple(text.casefold() for text in texts if text)
        self._only_words = only_words
        self.refresh()
        return tuple(self._having())

    def go_to_sentence(self, keys: Sequence[str], words: Iterable[str]) -> None:
        """Go to the line that has what is marked and most of these words, in the first of these messages that has it.

        Where none has it on a line, to the first message.
        """
        # It may have a size already and not have been told: at an end that comes afterwards it would not stay here.
        self._lay_out_anew()
        known = [key for key in keys if self._messages.holds(key)]
        for key in known:
            place = self._messages.index(key)
            if not self._has(self._messages[place].text):
                continue
            lines = self._lines_with(place)
            if lines:
                self._cursor = key
                near = {word.casefold() for word in words}
                self._show_line(place, max(lines, key=lambda line: (len(near & self._words_near(place, line)), -line)))
                return
        if known:
            self.move_cursor_to(known[0])

    def _words_near(self, place: int, line: int) -> set[str]:
        lines = self._messages[place].lines[max(line - 1, 0) : line + 2]
        return {word.casefold() for strip in lines for word in re.findall(r"\w+", strip.text)}

    def go_to_found(self, by: int) -> int | None:
        """Go to the next line (+1) or the one before (-1) that has the text; the place of its message, if any has it.

        From the last one it goes on at the first.
        """
        having = list(self._having())
        if not having:
            return None
        key = self.cursor
        at = self._messages.index(key) if key is not None else (-1 if by > 0 else len(self._messages))
        if at in having and (line := self._line_with(at, by, beside=self._found_line)) is not None:
            return self._show_line(at, line)
        others = [place for place in having if (place > at if by > 0 else place < at)]
        place = (others[0] if by > 0 else others[-1]) if others else having[0 if by > 0 else -1]
        self._cursor = self._messages[place].key
        return self._show_line(place, self._line_with(place, by, beside=None) or 0)

    def _show_line(self, place: int, line: int) -> int:
        self._found_line = line
        top, room = self.scroll_offset.y, self.window.height
        at = self._messages.heights.start(place) + line
        if not top <= at < top + room:
            # At once: what is scrolled to after the next paint may not be there any more.
            self._following = False
            self._settle(max(at - room // 3, 0))
        self.refresh()
        return place

    def _line_with(self, place: int, by: int, *, beside: int | None) -> int | None:
        """The nearest line of a message that has the text, behind or before the line `beside`, if that is given."""
        lines = self._lines_with(place)
        if beside is not None:
            lines = [number for number in lines if (number > beside if by > 0 else number < beside)]
        return (lines[0] if by > 0 else lines[-1]) if lines else None

    def _lines_with(self, place: int) -> list[int]:
        """The lines of a message that have what is looked for; it is unfolded for that."""
        message = self._messages[place]
        if message.view == "folded":
            self.show_as(message.key, "whole")
        if message.code_folded:
            self.fold_code(message.key)
        self._ensure_layout(place)
        return [number for number, strip in enumerate(message.lines) if self._has(strip.text)]

    def move_cursor_to(self, key: str) -> None:
        """See there; the next search begins at its first line."""
        self._found_line = None
        super().move_cursor_to(key)

    def _having(self) -> Iterator[int]:
        return (place for place in range(len(self._messages)) if self._has(self._messages[place].text))

    def _has(self, text: str) -> bool:
        folded = text.casefold()
        return any(True for needle in self._needles for _ in self._places(folded, needle))

    def _places(self, folded: str, needle: str) -> Iterator[int]:
        at = folded.find(needle)
        while at >= 0:
            if not self._only_words or not at or not folded[at - 1].isalnum():
                yield at
            at = folded.find(needle, at + len(needle))

    def _line_at(self, position: int, width: int) -> Strip:
        strip = super()._line_at(position, width)
        if not self._needles or position >= self._messages.heights.total:
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
        for needle in self._needles:
            for at in self._places(folded, needle):
                left = GUTTER_WIDTH + cell_len(text[:at])
                strip = restyled(strip, left, left + cell_len(text[at : at + len(needle)]), self._looks.found)
        return strip.apply_offsets(-GUTTER_WIDTH, row_of(index, number))
