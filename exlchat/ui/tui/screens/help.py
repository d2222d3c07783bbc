"""F1: keys and commands, generated from the registry of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.app.commands.actions import ACTIONS
from exlchat.app.keys.keymap import Keymap
from exlchat.ui.render.themes import for_rich

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from textual import events
    from textual.app import ComposeResult

    from exlchat.app.commands.action import Place

_HEADINGS: dict[Place, str] = {
    "everywhere": "Keys",
    "composer": "In the message you write",
    "message": "On a message",
    "sidebar": "In the sidebar",
}
_TWO_COLUMNS_CELLS = 36


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss_help", "Close", priority=True),
        Binding("f1", "dismiss_help", show=False, priority=True, id="help"),
    ]

    def __init__(self, keys: Keymap, place: Place = "everywhere") -> None:
        """What can be done in `place`, where it was opened, comes first."""
        super().__init__()
        self._keys = keys
        self._place = place

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(id="help-text")

    def on_mount(self) -> None:
        panel = self.query_one("#help")
        panel.border_title = "Help"
        panel.border_subtitle = "Esc closes"
        panel.focus()

    def on_resize(self, event: events.Resize) -> None:
        """Side by side, or one below the other where there is no room for two columns."""
        make = _table if event.size.width >= _TWO_COLUMNS_CELLS else _stack
        self.query_one("#help-text", Static).update(make(self.app.theme_variables, help_rows(self._keys, self._place)))

    def action_dismiss_help(self) -> None:
        self.dismiss()


def help_rows(keys: Keymap | None = None, first: Place = "everywhere") -> Iterable[tuple[str, str]]:
    """Everything of the registry, keys by place and then slash commands; headings have an empty right side."""
    keys = keys or Keymap()
    for place in (first, *(place for place in _HEADINGS if place != first)):
        yield _HEADINGS[place], ""
        for action in ACTIONS:
            if action.place == place and action.keys:
                yield ", ".join(keys.keys(action.id)), action.help
    yield "Commands", ""
    for action in ACTIONS:
        if action.slash:
            yield action.usage, action.help
    yield "//text", "Send text that begins with a slash."


def _stack(colors: Mapping[str, str], rows: Iterable[tuple[str, str]]) -> Text:
    heading, key = f"bold {for_rich(colors['primary'])}", for_rich(colors["secondary"])
    parts: list[tuple[str, str]] = []
    for left, right in rows:
        if right:
            parts += [(f"{left}\n", key), (f"{right}\n", "")]
        else:
            parts.append((f"\n{left}\n" if parts else f"{left}\n", heading))
    return Text.assemble(*parts)


def _table(colors: Mapping[str, str], rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0), expand=True)
    table.add_column(style=for_rich(colors["secondary"]), ratio=2)
    table.add_column(ratio=5)
    for number, (left, right) in enumerate(rows):
        if right:
            table.add_row(Text(left), Text(right))
        else:
            if number:
                table.add_row("", "")
            table.add_row(Text(left, style=f"bold {for_rich(colors['primary'])}"), "")
    return table
