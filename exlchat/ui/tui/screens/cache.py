"""The panel of the cache: pages, who uses them, how much they save, what is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.ui.markdown.sanitize import printable
from exlchat.ui.theme_colors import for_rich

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

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show newer rows in the place of those that are there."""
        self._rows = rows
        self.query_one("#cache-text", Static).update(_table(rows, self.app.theme_variables))

    def action_dismiss_panel(self) -> None:
        """Close."""
        self.dismiss()


_LABEL_CELLS = 9
"""What the words on the left need, with the gap behind them; only titles of conversations are longer."""


def _table(rows: Sequence[tuple[str, str]], colors: Mapping[str, str]) -> Group:
    """Headings over the whole width, and a table of two columns below each."""
    parts: list[Table | Text] = []
    for left, right in rows:
        if not right:
            space = "\n" if parts else ""
            parts.append(Text(f"{space}{printable(left)}", style=f"bold {for_rich(colors['primary'])}"))
            continue
        if not parts or not isinstance(parts[-1], Table):
            parts.append(_columns(colors))
        table = parts[-1]
        assert isinstance(table, Table)
        table.add_row(Text(printable(left)), Text(printable(right)))
    return Group(*parts)


def _columns(colors: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style=for_rich(colors["secondary"]), ratio=2, min_width=_LABEL_CELLS)
    table.add_column(ratio=5)
    return table
