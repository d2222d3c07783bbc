"""A message at a time: the cursor that keys move through a transcript, and what they ask of the message under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from exlchat.app.commands.actions import ACTIONS
from exlchat.ui.render.markdown.styles import TARGET, UNFOLDS
from exlchat.ui.tui.widgets.transcript_view import MessageView

if TYPE_CHECKING:
    from textual import events
    from textual.geometry import Offset

    from exlchat.ui.tui.widgets.transcript_items import Role, View

_SAID: Final[tuple[Role, ...]] = ("system", "user", "assistant", "thinking")
_CURSOR = Style(reverse=True, bold=True)
_MOVES: Final = ("message-up", "message-down", "message-ends")


def _bindings() -> list[BindingType]:
    """Moves are done here; everything else is asked of the screen, by the id of its action."""
    asked = [action for action in ACTIONS if action.place == "message" and action.keys and action.id not in _MOVES]
    return [
        *(Binding(",".join(action.keys), f"want('{action.id}')", action.title, id=action.id) for action in asked),
        Binding("up,k", "cursor(-1)", "Message above", id="message-up"),
        Binding("down,j", "cursor(1)", "Message below", id="message-down"),
        Binding("home,g", "cursor_end(False)", "First message", id="message-first"),
        Binding("end,G", "cursor_end(True)", "Last message", id="message-last"),
    ]


class CursorView(MessageView):
    """The cursor shows while the transcript has the focus, which a click does not give: letters are commands here."""

    FOCUS_ON_CLICK = False
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    @dataclass
    class Wanted(Message, namespace="transcript"):
        """An action of the registry is wanted of the message under the cursor, whose key is `key`, or ""."""

        action_id: str
        key: str

    @dataclass
    class LinkClicked(Message, namespace="transcript"):
        """A link was clicked that leads to `target`, as it was written."""

        target: str

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._cursor: str | None = None
        self._pressed_at: Offset | None = None

    @property
    def cursor(self) -> str | None:
        return self._cursor if self._cursor is not None and self._messages.holds(self._cursor) else None

    def move_cursor_to(self, key: str) -> None:
        """Put the cursor on a message and bring it into view.

        Raises:
            KeyError: there is no message of that key.
        """
        index = self._messages.index(key)
        self._cursor = key
        self._ensure_layout(index)
        start, height = self._messages.heights.start(index), self._messages.heights[index]
        top, room = self.scroll_offset.y, self.window.height
        if start < top or height >= room:
            self.scroll_to(y=start, animate=False)
        elif start + height > top + room:
            self.scroll_to(y=start + height - room, animate=False)
        self.refresh()

    def view_of(self, key: str) -> View:
        """How a message is shown.

        Raises:
            KeyError: there is no message of that key.
        """
        return self._messages[self._messages.index(key)].view

    def show_as(self, key: str, view: View) -> None:
        """Show a message as it is meant, folded to a line, or as it was written; the lines on screen stay in place.

        Raises:
            KeyError: there is no message of that key.
        """
        index = self._messages.index(key)
        self._messages[index].show_as(view)
        self._lay_out_again(index)

    def fold_above(self, key: str) -> bool:
        """Fold all messages above one to a line each, or unfold them where all are; False if there is none above.

        Raises:
            KeyError: there is no message of that key.
        """
        last = self._messages.index(key)
        folded = all(self._messages[index].view == "folded" for index in range(last))
        self._drop_selection()
        for index in range(last):
            self._messages[index].show_as("whole" if folded else "folded")
            self._messages.lay_out(index)
        self._settle(self._messages.heights.start(last))
        self.move_cursor_to(key)
        return last > 0

    def fold_code(self, key: str) -> bool:
        """Fold the long code of a message to its first lines, or unfold it; False if it has no long code.

        Raises:
            KeyError: there is no message of that key.
        """
        index = self._messages.index(key)
        message = self._messages[index]
        before = message.view
        message.fold_code(not message.code_folded)
        self._lay_out_again(index)
        if message.code_folded and not (message.layout is not None and message.layout.has_long_code()):
            message.fold_code(False)
            message.show_as(before)
            self._lay_out_again(index)
            return False
        return True

    def _lay_out_again(self, index: int) -> None:
        """After a message is to be shown another way. The lines on the screen stay in place, unless it covers them."""
        self._drop_selection()
        start = self._messages.heights.start(index)
        self._messages.lay_out(index)
        top = self.scroll_offset.y
        self._settle(start if start < top else top)
        self.refresh()

    def _clicked(self, event: events.Click, index: int, line: int) -> None:
        """A click on a line of a message: on a link, on what stands for folded code, or for the message itself."""
        meta = event.style.meta
        if event.screen_offset != self._pressed_at:
            return
        if meta.get(UNFOLDS):
            # Else the end would be followed, away from the code.
            self._following = False
            self._messages[index].unfold_code_at(line)
            self._drop_selection()
            self._messages.lay_out(index)
            self._settle(self.scroll_offset.y)
            self.refresh()
        elif self._messages[index].view == "folded":
            self._following = False
            self._messages[index].show_as("whole")
            self._lay_out_again(index)
        elif target := meta.get(TARGET):
            self.post_message(self.LinkClicked(str(target)))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Where a click begins: one that ends elsewhere selects."""
        self._pressed_at = event.screen_offset

    def on_focus(self) -> None:
        """The cursor begins at the last message that is seen."""
        if self.cursor is None and len(self._messages):
            bottom = min(self.scroll_offset.y + self.window.height, self._messages.heights.total)
            below = self._messages.heights.find(max(bottom - 1, 0))[0] + 1
            if (index := self._said(below, -1)) is not None:
                self.move_cursor_to(self._messages[index].key)
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def action_cursor(self, by: int) -> None:
        """Up (-1) or down (+1): through a message that does not fit the screen, else to the next one."""
        key = self.cursor
        if key is None:
            self.on_focus()
            return
        index = self._messages.index(key)
        start, end = self._messages.heights.start(index), self._messages.heights.start(index + 1)
        top, room = self.scroll_offset.y, self.window.height
        left = end - (top + room) if by > 0 else top - start
        if end - start > room and left > 0:
            self.scroll_relative(y=by * min(left, max(room // 2, 1)), animate=False)
            return
        other = self._said(index, by)
        if other is None:
            return
        self.move_cursor_to(self._messages[other].key)
        if by < 0 and self._messages.heights[other] > room:
            # A message that is entered from below is read from its end.
            self.scroll_to(y=self._messages.heights.start(index) - room, animate=False)

    def action_cursor_end(self, last: bool) -> None:
        index = self._said(len(self._messages), -1) if last else self._said(-1, 1)
        if index is not None:
            self.move_cursor_to(self._messages[index].key)
        if last:
            self.scroll_to_end()

    def action_want(self, action_id: str) -> None:
        self.post_message(self.Wanted(action_id, self.cursor or ""))

    def on_click(self, event: events.Click) -> None:
        """A click on a message puts the cursor there for when the focus comes; see also the badge."""
        super().on_click(event)
        at = event.get_content_offset(self)
        if at is None or not len(self._messages):
            return
        position = self.scroll_offset.y + at.y
        if position < self._messages.heights.total:
            index, line = self._messages.heights.find(position)
            message = self._messages[index]
            self._cursor = message.key if message.role in _SAID else self._cursor
            self._clicked(event, index, line)

    def _said(self, index: int, by: int) -> int | None:
        """The nearest message above (-1) or below (+1) a place that is part of the conversation."""
        index += by
        while 0 <= index < len(self._messages):
            if self._messages[index].role in _SAID:
                return index
            index += by
        return None

    def _mark(self, index: int) -> Style:
        mark = super()._mark(index)
        return mark + _CURSOR if self.has_focus and self._messages[index].key == self._cursor else mark
