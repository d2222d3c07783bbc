"""The panel of the cache: pages, who uses them, how much they save, what is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.ui.markdown.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult


class CacheScreen(ModalScreen[None]):
    """Shows rows; any of the listed keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss_panel", "Close", priority=True),
    ]

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._rows = rows

    def compose(self) -> ComposeResult:
        """One scrolling column, for terminals of any height."""
        with VerticalScroll(id="cache"):
            yield Static(_table(self._rows, self.app.theme_variables), id="cache-text")

    def on_mount(self) -> None:
        """Say how to leave on the frame itself, where there is always room."""
        panel = self.query_one("#cache")
        panel.border_title = "Cache"
        panel.border_subtitle = "Esc closes"
        panel.focus()

    def action_dismiss_panel(self) -> None:
        """Close."""
        self.dismiss()


def _table(rows: Sequence[tuple[str, str]], colors: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0), expand=True)
    table.add_column(style=colors["secondary"], ratio=2)
    table.add_column(ratio=5)
    for number, (left, right) in enumerate(rows):
        if not right and number:
            table.add_row("", "")
        style = "" if right else f"bold {colors['primary']}"
        table.add_row(Text(printable(left), style=style), Text(printable(right)))
    return table
