"""Answers side by side while they are written; one is kept in view, the others as its alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.chat.store import StoreError
from exlchat.ui.markdown.sanitize import normalize_newlines, printable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from exlchat.ui.comparison import Comparison

_EVERY_SECONDS = 0.1


class CompareScreen(ModalScreen[int | None]):
    """Gives the place of the answer to show, or `None` when it was left with Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("left,h,shift+tab", "move(-1)", "Left", priority=True),
        Binding("right,l,tab", "move(1)", "Right", priority=True),
        Binding("enter", "keep", "Keep", priority=True),
        *(Binding(str(number), f"keep_number({number})", show=False, priority=True) for number in range(1, 9)),
    ]

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self._comparison = comparison
        self._at = 0
        self._shown: list[str] = []

    def compose(self) -> ComposeResult:
        """A column for each answer."""
        with Horizontal(id="compare"):
            for number in range(self._comparison.many):
                with VerticalScroll(classes="answer", id=f"answer-{number}"):
                    yield Static("", markup=False)

    def on_mount(self) -> None:
        """Look for what has come, ten times a second."""
        frame = self.query_one("#compare")
        frame.border_title = "Compare"
        frame.border_subtitle = "← → · Enter or a number keeps one · Esc stops"
        for number, column in enumerate(self.query(VerticalScroll), 1):
            column.border_title = str(number)
        self._mark()
        self.set_interval(_EVERY_SECONDS, self._look)
        self._look()

    def _look(self) -> None:
        try:
            texts = self._comparison.texts()
        except StoreError as error:
            self.query_one("#compare").border_subtitle = printable(str(error))
            return
        for number, text in enumerate(texts):
            if number >= len(self._shown) or self._shown[number] != text:
                column = self.query_one(f"#answer-{number}", VerticalScroll)
                follows = column.max_scroll_y - column.scroll_offset.y <= 1
                column.query_one(Static).update(printable(normalize_newlines(text)))
                if follows and not self._comparison.ended:
                    column.scroll_end(animate=False)
        for column in list(self.query(VerticalScroll))[len(texts) : len(self._shown)]:
            column.query_one(Static).update("")  # of one that came to nothing
        self._shown = texts

    def _mark(self) -> None:
        for number, column in enumerate(self.query(VerticalScroll)):
            column.set_class(number == self._at, "-chosen")
            if number == self._at:
                column.focus()

    def action_move(self, by: int) -> None:
        """The column beside."""
        self._at = (self._at + by) % self._comparison.many
        self._mark()

    def action_keep(self) -> None:
        """Keep the marked one."""
        self.action_keep_number(self._at + 1)

    def action_keep_number(self, number: int) -> None:
        """Keep one by its number, once it has begun."""
        if number <= len(self._comparison.ids):
            self.dismiss(number - 1)
        else:
            self.app.bell()

    def action_leave(self) -> None:
        """Escape: no further answers."""
        self.dismiss(None)
