"""The line in which one types what to find in the conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from exlchat.untrusted.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from textual.app import ComposeResult


class FindBar(Horizontal):
    """Hidden until it is wanted. Enter and the arrow keys go from place to place, Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,down", "step(1)", "Next", priority=True),
        Binding("shift+enter,up", "step(-1)", "Previous", priority=True),
        Binding("escape", "leave", "Close", priority=True),
    ]

    field = getters.query_one(Input)
    count = getters.query_one("#find-count", Static)

    @dataclass
    class Wanted(Message):
        """This text is to be found; "" nothing."""

        text: str

    @dataclass
    class Step(Message):
        """Go to the next place (+1) or the one before (-1)."""

        by: int

    class Left(Message):
        """The bar was closed."""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Find in this conversation", id="find", restrict=PRINTABLE_LINE, compact=True)
        yield Static("", id="find-count", markup=False)

    def on_mount(self) -> None:
        self.display = False

    def open(self, text: str) -> None:
        self.display = True
        if text:
            self.field.value = text
        self.field.focus()
        self.field.select_all()
        self.post_message(self.Wanted(self.field.value))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.display:
            self.post_message(self.Wanted(event.value))

    def action_step(self, by: int) -> None:
        self.post_message(self.Step(by))

    def action_leave(self) -> None:
        self.display = False
        self.post_message(self.Left())
