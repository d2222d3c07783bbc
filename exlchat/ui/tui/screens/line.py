"""Asks for one line: a title, the name of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from exlchat.untrusted.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from textual.app import ComposeResult

_MAX_LENGTH = 200


class InputScreen(ModalScreen[str | None]):
    """Gives the line, or `None` when it was left with Escape or left empty."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, title: str, line: str, *, hint: str) -> None:
        """`line` stands there at first; `title` and `hint` on the frame say what it is for and what Enter does."""
        super().__init__()
        self._title = title
        self._line = line
        self._hint = hint

    def compose(self) -> ComposeResult:
        field = Input(self._line, id="line", max_length=_MAX_LENGTH, select_on_focus=True, restrict=PRINTABLE_LINE)
        field.border_title = self._title
        field.border_subtitle = self._hint
        yield field

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        self.dismiss(None)
