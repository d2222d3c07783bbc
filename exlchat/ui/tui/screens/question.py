"""One question before something is destroyed. No letter answers it: whoever types by mistake changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult


class QuestionScreen(ModalScreen[bool]):
    """Gives whether it is to be done. At first the other answer is marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(False)", "Leave", priority=True),
        Binding("delete", "answer(True)", "Do it", priority=True),
    ]

    def __init__(self, question: str, *, no: str, yes: str) -> None:
        super().__init__()
        self._question, self._no, self._yes = question, no, yes

    def compose(self) -> ComposeResult:
        yield OptionList(Option(printable(self._no)), Option(printable(self._yes)), id="question", markup=False)

    def on_mount(self) -> None:
        frame = self.query_one("#question", OptionList)
        frame.border_title = printable(self._question)
        frame.border_subtitle = "↓ Enter does it · Esc leaves"
        frame.highlighted = 0
        frame.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index == 1)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
