"""Panels that only show rows: the cache (pages, who uses them, how much they save, what is on disk), and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.ui.tui.screens.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult


class RowsScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss_panel", "Close", priority=True),
    ]

    def __init__(self, heading: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.heading = heading
        self._rows = rows

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="rows"):
            yield Static(table(self._rows, self.app.theme_variables, self.app.size.width), id="rows-text")

    def on_mount(self) -> None:
        panel = self.query_one("#rows")
        panel.border_title = self.heading
        panel.border_subtitle = "Esc closes"
        panel.focus()

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows = rows
        self.query_one("#rows-text", Static).update(table(rows, self.app.theme_variables, self.app.size.width))

    def action_dismiss_panel(self) -> None:
        self.dismiss()
