"""Answers side by side while they are written; one is kept in view, the others as its alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.chat.store.conversations import StoreError
from exlchat.ui.tui.widgets.transcript import Status, Transcript, TranscriptItem
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from exlchat.app.chat.comparison import Comparison
    from exlchat.config.schema import Underscores
    from exlchat.ui.render.markdown.styles import CodeStyle

_EVERY_SECONDS = 0.1
_ANSWER = "answer"


class AnswerColumn(Transcript, inherit_bindings=False):
    """One of the answers, as the conversation would show it. Keys scroll; there is no cursor on a message."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", show=False),
        Binding("down,j", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown,space", "page_down", show=False),
        Binding("home,g", "scroll_home", show=False),
        Binding("end,G", "scroll_end", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._growing = False

    def show_answer(self, text: str, *, growing: bool) -> None:
        """Show this text, to which more may come while it is `growing`. Cheap where it begins with what was shown."""
        there = self.holds(_ANSWER)
        if there and (text, growing) == (self._text, self._growing):
            return
        if there and self._growing and growing and text.startswith(self._text):
            self.append_text(_ANSWER, text[len(self._text) :])
        elif there and self._growing and not growing:
            self.close_message(_ANSWER, text)
        else:
            status: Status = "streaming" if growing else "complete"
            self.set_messages([TranscriptItem(_ANSWER, "assistant", text, status=status)])
        self._text, self._growing = text, growing

    def clear(self) -> None:
        if self.holds(_ANSWER):
            self.remove_message(_ANSWER)

    def _said(self, index: int, by: int) -> None:
        """There is nothing for the cursor."""


class AnswerPane(Vertical):
    """A column with its number above it, and below it how fast it came."""

    def __init__(self, number: int) -> None:
        super().__init__(classes="answer")
        self._number = number

    def compose(self) -> ComposeResult:
        yield Static(str(self._number), classes="answer-number", markup=False)
        yield AnswerColumn()
        yield Static("", classes="answer-rate", markup=False)

    def show_rate(self, line: str) -> None:
        self.query_one(".answer-rate", Static).update(line)


class CompareScreen(ModalScreen[int | None]):
    """Gives the place of the answer to show, or `None` when it was left with Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("left,h,shift+tab", "move(-1)", "Left", priority=True),
        Binding("right,l,tab", "move(1)", "Right", priority=True),
        Binding("enter", "keep", "Keep", priority=True),
        *(Binding(str(number), f"keep_number({number})", show=False, priority=True) for number in range(1, 9)),
    ]

    def __init__(self, comparison: Comparison, code_style: CodeStyle, underscores: Underscores) -> None:
        super().__init__()
        self._comparison = comparison
        self._code_style = code_style
        self._underscores: Underscores = underscores
        self._at = 0

    def compose(self) -> ComposeResult:
        with Horizontal(id="compare"):
            for number in range(1, self._comparison.many + 1):
                yield AnswerPane(number)

    def on_mount(self) -> None:
        """Look for what has come, ten times a second."""
        frame = self.query_one("#compare")
        frame.border_title = "Compare"
        for column in self._columns:
            column.code_style = self._code_style
            column.underscores = self._underscores
        self._mark()
        self.set_interval(_EVERY_SECONDS, self._look)
        self._look()

    def _look(self) -> None:
        try:
            texts, rates = self._comparison.texts(), self._comparison.rates()
        except StoreError as error:
            self.query_one("#compare").border_subtitle = printable(str(error))
            return
        growing = not self._comparison.ended
        columns = self._columns
        for column, text in zip(columns, texts, strict=False):
            column.show_answer(text, growing=growing)
        for column in columns[len(texts) :]:
            column.clear()
        for pane, rate in zip(self.query(AnswerPane), rates, strict=False):
            pane.show_rate(rate)
        ends = "Esc stops them and takes none" if growing else "Esc takes none"
        self.query_one("#compare").border_subtitle = f"← → · Enter or a number keeps one · {ends}"

    @property
    def _columns(self) -> list[AnswerColumn]:
        return list(self.query(AnswerColumn))

    def _mark(self) -> None:
        for number, column in enumerate(self._columns):
            assert column.parent is not None
            column.parent.set_class(number == self._at, "-chosen")
            if number == self._at:
                column.focus()

    def action_move(self, by: int) -> None:
        self._at = (self._at + by) % self._comparison.many
        self._mark()

    def action_keep(self) -> None:
        self.action_keep_number(self._at + 1)

    def action_keep_number(self, number: int) -> None:
        """Keep one by its number, once it has begun."""
        if number <= len(self._comparison.ids):
            self.dismiss(number - 1)
        else:
            self.app.bell()

    def action_leave(self) -> None:
        self.dismiss(None)
