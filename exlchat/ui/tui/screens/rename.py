"""Asks for a new title."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from exlchat.ui.markdown.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from textual.app import ComposeResult

_MAX_LENGTH = 200


class RenameScreen(ModalScreen[str | None]):
    """Gives the title, or `None` when it was left with Escape or left empty."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Keep the title")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """One field on a frame that says what to do."""
        field = Input(self._title, id="rename", max_length=_MAX_LENGTH, select_on_focus=True, restrict=PRINTABLE_LINE)
        field.border_title = "Rename"
        field.border_subtitle = "Enter keeps · Esc leaves"
        yield field

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        """Escape."""
        self.dismiss(None)
