"""Rows of two columns under headings, as the panels show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from exlchat.ui.render.themes import for_rich
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TWO_COLUMNS_CELLS = 32
_LABEL_CELLS = 9
"""What the words on the left need, with the gap behind them; only titles of conversations are longer."""


def table(rows: Iterable[tuple[str, str]], colors: Mapping[str, str], width: int) -> Group | Text:
    """Headings, which have an empty right side, over the whole width, and a table of two columns below each.

    In a terminal of `width` cells without room for two columns, the right side stands behind the left.
    """
    if width < _TWO_COLUMNS_CELLS:
        return _stack(rows, colors)
    parts: list[Table | Text] = []
    for left, right in rows:
        if not right:
            space = "\n" if parts else ""
            parts.append(Text(f"{space}{printable(left)}", style=f"bold {for_rich(colors['primary'])}"))
            continue
        if not parts or not isinstance(parts[-1], Table):
            parts.append(_columns(colors))
        last = parts[-1]
        assert isinstance(last, Table)
        last.add_row(Text(printable(left)), Text(printable(right)))
    return Group(*parts)


def _stack(rows: Iterable[tuple[str, str]], colors: Mapping[str, str]) -> Text:
    text = Text()
    for left, right in rows:
        if right:
            text.append(f"{printable(left)} ", for_rich(colors["secondary"])).append(f"{printable(right)}\n")
        else:
            space = "\n" if text else ""
            text.append(f"{space}{printable(left)}\n", f"bold {for_rich(colors['primary'])}")
    text.rstrip()
    return text


def _columns(colors: Mapping[str, str]) -> Table:
    columns = Table.grid(padding=(0, 2, 0, 0), expand=True)
    columns.add_column(style=for_rich(colors["secondary"]), ratio=2, min_width=_LABEL_CELLS)
    columns.add_column(ratio=5)
    return columns
