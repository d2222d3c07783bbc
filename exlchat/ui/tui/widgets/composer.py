"""The composer: where a message is typed. Enter sends; everything else that looks like Enter makes a new line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from exlchat.ui.tui.terminal_keys import NEW_LINE_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACEHOLDER = "Write a message · Enter sends · /help"
NARROW_PLACEHOLDER = "Write a message"


class Composer(TextArea):
    """A text area that grows with its text up to the height its style allows, and remembers earlier prompts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", priority=True, id="send"),
        Binding(",".join(NEW_LINE_KEYS), "new_line", "New line", priority=True, id="new-line"),
        Binding("up", "earlier", "Earlier prompt", show=False, id="earlier-prompt"),
        Binding("down", "later", "Later prompt", show=False, id="later-prompt"),
        Binding("tab", "complete", "Complete", show=False, id="complete"),
        Binding("pageup", "screen.scroll_page(-1)", show=False),
        Binding("pagedown", "screen.scroll_page(1)", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed on this text, which is still in the composer."""

        text: str

    @dataclass
    class CompletionMoved(Message):
        """Up (-1) or down (+1) was pressed while commands are being offered."""

        by: int

    class CompletionTaken(Message):
        """Tab was pressed while commands are being offered."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(placeholder=PLACEHOLDER, compact=True, highlight_cursor_line=False, id=id)
        self.offering = False
        self._prompts: Sequence[str] = ()
        self._at: int | None = None
        self._draft = ""

    def set_prompts(self, prompts: Sequence[str]) -> None:
        """The earlier prompts of this conversation, oldest first."""
        self._prompts = prompts
        self._at = None

    def set_text(self, text: str) -> None:
        """Replace the text and put the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)

    def take(self) -> None:
        """Empty the composer after its text has been taken over."""
        self._at = None
        self._draft = ""
        self.text = ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tab completes a command while one is offered; else it moves the focus as everywhere."""
        if action == "complete":
            return self.offering
        return super().check_action(action, parameters)

    def action_submit(self) -> None:
        """Send, unless the line ends with a backslash: then make a new line in its place."""
        row, column = self.cursor_location
        if self.selection.is_empty and self.cursor_at_end_of_line and self.document[row].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        self.post_message(self.Submitted(self.text))

    def action_new_line(self) -> None:
        """Make a new line at the cursor."""
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_complete(self) -> None:
        """Take the offered command."""
        self.post_message(self.CompletionTaken())

    def action_earlier(self) -> None:
        """Cursor up; on the first line, the prompt before."""
        if self.offering:
            self.post_message(self.CompletionMoved(-1))
        elif self.navigator.is_first_wrapped_line(self.cursor_location) and self._recallable():
            self._recall((len(self._prompts) if self._at is None else self._at) - 1)
        else:
            self.action_cursor_up()

    def action_later(self) -> None:
        """Cursor down; on the last line, the prompt after, and at last the draft again."""
        if self.offering:
            self.post_message(self.CompletionMoved(1))
        elif self._at is not None and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._recall(self._at + 1)
        else:
            self.action_cursor_down()

    def _recallable(self) -> bool:
        return bool(self._prompts) and self._at != 0

    def _recall(self, at: int) -> None:
        if self._at is None:
            self._draft = self.text
        if at >= len(self._prompts):
            self._at = None
            self.set_text(self._draft)
        else:
            self._at = at
            self.set_text(self._prompts[at])

    def on_resize(self, event: events.Resize) -> None:
        """A long placeholder would be cut in a narrow terminal."""
        fits = event.size.width > len(PLACEHOLDER)
        self.placeholder = PLACEHOLDER if fits else NARROW_PLACEHOLDER
