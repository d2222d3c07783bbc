"""The transcript: one widget for a conversation of any length that may still be growing.

Text that arrives is collected and painted at most 30 times a second.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from exlchat.ui.tui.widgets.transcript_find import FindView
from exlchat.ui.tui.widgets.transcript_items import Role, Status, TranscriptItem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.timer import Timer

__all__ = ["Role", "Status", "Transcript", "TranscriptItem"]

PAINT_INTERVAL: Final = 1 / 30
"""Seconds between paints while text arrives."""
MOVING_INTERVAL: Final = 1 / 16
"""After a paint that moved the window: then all of its lines are painted, which takes Textual 8 ms for 36 of them."""
RACING_INTERVAL: Final = 1 / 6
"""The same where lines come faster than anybody reads: half of what painting costs."""
_RACING_LINES = 8
"""A second; a model of 100 tokens a second brings some five."""
PAINT_SHARE: Final = 0.25
"""At most this share of the time goes into laying out, however large the open end of a message is."""


class Transcript(FindView):
    """Shows messages, follows the end while text arrives, and stays put once the user has scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+home", "scroll_home", "First line", show=False),
        Binding("ctrl+end", "scroll_end", "Last line", show=False),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._dirty: set[str] = set()
        self._paint_timer: Timer | None = None
        self._next_paint = 0.0
        self._moved_at = 0.0

    def set_messages(self, items: Iterable[TranscriptItem]) -> None:
        """Show another conversation, at its end.

        Raises:
            ValueError: two items have the same key.
        """
        self._place = None
        self._messages.replace(items)
        self._dirty.clear()
        self._drop_selection()
        self.scroll_to_end()
        self.refresh()

    def holds(self, key: str) -> bool:
        return self._messages.holds(key)

    def append_message(self, item: TranscriptItem) -> None:
        """Add a message at the end.

        Raises:
            ValueError: its key is taken.
        """
        self._messages.append(item)
        self._paint_soon(item.key)

    def append_text(self, key: str, text: str) -> None:
        """Add text to a message. Cheap: laying out and painting come later, for all that has arrived by then.

        Raises:
            KeyError: there is no message of that key.
        """
        self._messages[self._messages.index(key)].append(text)
        self._paint_soon(key)

    def close_message(
        self, key: str, text: str | None = None, *, footer: str = "", status: Status = "complete", fold: str = ""
    ) -> None:
        """Finish a message; `text`, if given, is its whole text and takes the place of what was streamed.

        Raises:
            KeyError: there is no message of that key.
        """
        self._messages[self._messages.index(key)].close(text, footer, status, fold)
        self._paint_soon(key)

    def remove_message(self, key: str) -> None:
        """Take a message out; what was below it moves up.

        Raises:
            KeyError: there is no message of that key.
        """
        index = self._messages.index(key)
        start, height = self._messages.heights.start(index), self._messages.heights[index]
        self._dirty.discard(key)
        self._place = None
        self._messages.remove(key)
        self._drop_selection()
        top = self.scroll_offset.y
        self._settle(max(start, top - height) if start < top else top)
        self.refresh()

    def on_mount(self) -> None:
        """Paint what arrived before there was a screen."""
        self._paint_soon()

    def _paint_soon(self, key: str | None = None) -> None:
        if key is not None:
            self._dirty.add(key)
        if self._paint_timer is None and self.is_mounted:
            delay = max(self._next_paint - monotonic(), 0.001)
            self._paint_timer = self.set_timer(delay, self._paint)

    def _paint(self) -> None:
        """Lay out the messages that changed and repaint from their first changed line on."""
        self._paint_timer = None
        begin = monotonic()
        before = top = self.scroll_offset.y
        below = 0
        first_changed: int | None = None
        for index in sorted(map(self._messages.index, self._dirty)):
            start, height = self._messages.heights.start(index), self._messages.heights[index]
            seen = self._messages[index].measured or 0
            delta, line = self._messages.lay_out(index)
            first_changed = start + line if first_changed is None else first_changed
            if start + height <= top:
                top += delta
            else:
                below += self._messages.heights[index] - seen
        self._dirty.clear()
        if below > 0 and not self.following:
            self._set_new_lines(self._new_lines + below)
        moved = self._settle(top)
        if not moved and first_changed is not None:
            self._repaint_from(first_changed - top)
        now = monotonic()
        interval = MOVING_INTERVAL if moved else PAINT_INTERVAL
        if moved:
            if self.scroll_offset.y - before > _RACING_LINES * (begin - self._moved_at):
                interval = RACING_INTERVAL
            self._moved_at = begin
        self._next_paint = now + max(begin + interval - now, (now - begin) * (1 / PAINT_SHARE - 1))
