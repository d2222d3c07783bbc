"""The model library: a list that typing narrows; Enter loads."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.library.listing import Entry, fit_text, size_text, summary, used_text
from exlchat.app.runtime.errors import error_line
from exlchat.untrusted.sanitize import PRINTABLE_LINE, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult


_NAME_CELLS = 36


@dataclass
class ListedModel(Message):
    """The library was looked through; `problem` says why it could not be."""

    entries: Sequence[Entry]
    problem: str | None = None


class ModelsScreen(ModalScreen[Path | None]):
    """Gives the folder to be loaded, or `None` when it was left with Escape.

    Args:
        look: lists the library; runs on a thread of its own.
        loaded: the folder of the present model.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Keep the model"),
        Binding("up", "move('cursor_up')", show=False),
        Binding("down", "move('cursor_down')", show=False),
        Binding("pageup", "move('page_up')", show=False),
        Binding("pagedown", "move('page_down')", show=False),
    ]

    field = getters.query_one("#models-filter", Input)
    options = getters.query_one("#models-list", OptionList)
    more = getters.query_one("#models-more", Static)

    def __init__(self, look: Callable[[], Sequence[Entry]], loaded: Path | None) -> None:
        super().__init__()
        self._look = look
        self._loaded = loaded
        self._entries: Sequence[Entry] = ()
        self._shown: list[Entry] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="models"):
            yield Input(id="models-filter", placeholder="Type to narrow the list", restrict=PRINTABLE_LINE)
            yield OptionList(id="models-list", markup=False)
            yield Static("Looking through the folders…", id="models-more", markup=False)

    def on_mount(self) -> None:
        frame = self.query_one("#models")
        frame.border_title = "Models"
        frame.border_subtitle = "Enter loads · Esc leaves"
        self.options.can_focus = False
        self.field.focus()
        self.run_worker(self._look_through, thread=True, exit_on_error=False)

    def _look_through(self) -> None:
        try:
            self.post_message(ListedModel(self._look()))
        except Exception as error:
            self.post_message(ListedModel((), error_line(error)))

    @on(ListedModel)
    def _listed(self, event: ListedModel) -> None:
        self._entries = event.entries
        self._narrow()
        if event.problem is not None:
            self.more.update(printable(event.problem))

    @on(Input.Changed)
    def _narrow(self) -> None:
        words = self.field.value.casefold().split()
        self._shown = [
            entry
            for entry in self._entries
            if all(word in f"{entry.name} {summary(entry)} {entry.path}".casefold() for word in words)
        ]
        self.options.clear_options()
        self.options.add_options([Option(self._row(entry)) for entry in self._shown])
        if self._shown:
            self.options.highlighted = 0
        elif self._entries:
            self.more.update("No model has that in its name, format or folder")

    def _row(self, entry: Entry) -> Content:
        mark = "● " if self._loaded is not None and entry.path.resolve() == self._loaded else "  "
        name = Content.styled(f"{mark}{entry.name}", "bold" if entry.card.problem is None else "$quiet-text")
        told = printable(entry.card.format) if entry.card.problem is None else "cannot be loaded"
        told = " " * (_NAME_CELLS - cell_len(entry.name)) + f"  {told}"
        facts = [size_text(entry.card.bytes)]
        if entry.card.problem is None:
            facts.append("fits" if entry.problem is None else "does not fit")
        facts.append(used_text(entry.used, datetime.datetime.now()))
        return Content.assemble(name, Content.styled(f"{told} · {' · '.join(facts)}", "$quiet-text"))

    @on(OptionList.OptionHighlighted)
    def _tell_more(self, event: OptionList.OptionHighlighted) -> None:
        entry = self._shown[event.option_index]
        lines = (summary(entry), fit_text(entry), str(entry.path))
        self.more.update("\n".join(printable(line) for line in lines if line))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self._load(event.option_index)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.options.highlighted is not None:
            self._load(self.options.highlighted)

    def _load(self, index: int) -> None:
        """What cannot be loaded stays in sight, with the line that says why."""
        if self._shown[index].card.problem is None:
            self.dismiss(self._shown[index].path)
        else:
            self.app.bell()

    def action_move(self, how: str) -> None:
        getattr(self.options, f"action_{how}")()

    def action_leave(self) -> None:
        self.dismiss(None)
