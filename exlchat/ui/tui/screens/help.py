"""F1: keys and commands, generated from the registry of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, get_args

from rich.table import Table
from rich.text import Text
from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from exlchat.app.commands.action import Topic
from exlchat.app.commands.actions import ACTIONS, BY_ID, BY_SLASH
from exlchat.app.guide.quoting import Quoting
from exlchat.app.keys.keymap import Keymap
from exlchat.ui.render.themes import for_rich
from exlchat.untrusted.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from textual.app import ComposeResult

    from exlchat.app.commands.action import Action, Place

_PLACES: dict[Place, str] = {
    "composer": "In the message you write",
    "message": "On a message",
    "sidebar": "In the sidebar",
}
_ESSENTIALS = ("send", "new-line", "stop", "new", "retry", "models", "search", "settings", "palette", "help", "quit")
_TWO_COLUMNS_CELLS = 36
_ASKED = 3
"""So many letters of what is no key and no command are a question."""


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss_help", "Close", priority=True),
        Binding("f1", "dismiss_help", show=False, priority=True, id="help"),
        *(Binding(key, f"scroll('{key}')", show=False) for key in ("up", "down", "pageup", "pagedown")),
    ]

    typed = getters.query_one("#help-typed", Input)
    panel = getters.query_one("#help-panel", VerticalScroll)

    def __init__(self, keys: Keymap, place: Place = "everywhere", lacks: Mapping[str, str] | None = None) -> None:
        """What can be done in `place`, where it was opened, comes first; what the model `lacks` steps back."""
        super().__init__()
        self._reasons = {one.help: reason for one in ACTIONS if (reason := one.lacking(lacks or {}))}
        """Why what stands on a right side cannot be done now."""
        self._keys = keys
        self._place = place
        self._guide = Quoting()

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield Input(id="help-typed", placeholder="Type to search", restrict=PRINTABLE_LINE)
            with VerticalScroll(id="help-panel", can_focus=False):
                # All of it from the first layout on, whose measures an update before the mounting would not change.
                yield Static(self._told(""), id="help-text")

    def on_mount(self) -> None:
        around = self.query_one("#help")
        around.border_title = "Help"
        around.border_subtitle = "Esc closes · ↑↓ scroll"
        self.typed.focus()

    @on(Input.Changed)
    def _search(self) -> None:
        self._show()
        self.panel.scroll_home(animate=False)

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        self.query_one("#help-text", Static).update(self._told(self.typed.value.strip()))

    def _told(self, typed: str) -> Table | Text:
        """Side by side, or one below the other where there is no room for two columns."""
        make = _table if self.app.size.width >= _TWO_COLUMNS_CELLS else _stack
        rows = found_rows(help_rows(self._keys, self._place), typed)
        if not rows:
            told = self._guide.rows(typed) if len(typed) >= _ASKED else ()
            rows = [("Nothing has these words", ""), (typed, "Try fewer, or ask the guide: /model guide.")]
            rows = [("The guide says", ""), *told] if told else rows
        return make(self.app.theme_variables, rows, self._reasons)

    def action_scroll(self, key: str) -> None:
        scroll = {
            "up": self.panel.scroll_up,
            "down": self.panel.scroll_down,
            "pageup": self.panel.scroll_page_up,
            "pagedown": self.panel.scroll_page_down,
        }
        scroll[key](animate=False)

    def action_dismiss_help(self) -> None:
        self.dismiss()


def help_rows(keys: Keymap | None = None, first: Place = "everywhere") -> Iterator[tuple[str, str]]:
    """Everything of the registry: keys and slash commands, and what they do; headings have an empty right side.

    What can be done in the place where help was asked for, then what nobody can do without, then the rest by topic.
    """
    keys = keys or Keymap()
    if first in _PLACES:
        yield from _of_place(first, keys)
    yield "First of all", ""
    yield from ((_doors(BY_ID[one], keys), BY_ID[one].help) for one in _ESSENTIALS)
    for topic in get_args(Topic):
        yield topic, ""
        yield from ((_doors(one, keys), one.help) for one in ACTIONS if one.topic == topic and _is_listed(one))
        if topic == "Writing":
            yield "//text", "Send text that begins with a slash."
    for place in _PLACES:
        if place != first:
            yield from _of_place(place, keys)


def _of_place(place: Place, keys: Keymap) -> Iterator[tuple[str, str]]:
    yield _PLACES[place], ""
    for one in ACTIONS:
        if one.place == place and one.keys and one.id not in _ESSENTIALS:
            yield ", ".join(keys.keys(one.id)), one.help


def _is_listed(action: Action) -> bool:
    """By its topic: not if it is one of the essentials, or has only keys of a place, which has a list of its own."""
    return action.id not in _ESSENTIALS and bool(action.slash or (action.keys and action.place == "everywhere"))


def _doors(action: Action, keys: Keymap) -> str:
    """Keys, but for those of a place, and the slash command."""
    listed = keys.keys(action.id) if action.place == "everywhere" or action.id in _ESSENTIALS else ()
    return ", ".join([*listed, *([action.usage] if action.slash else [])])


def found_rows(rows: Iterable[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    """Those rows that have every word that was typed, in them or in their heading, below their headings."""
    words = typed.lower().split()
    found: list[tuple[str, str]] = []
    heading = told = ""
    for left, right in rows:
        if not right:
            heading = left
        elif all(word in f"{heading} {left} {_also_called(left)} {right}".lower() for word in words):
            if heading != told:
                found.append((heading, ""))
                told = heading
            found.append((left, right))
    return found


def _also_called(left: str) -> str:
    """The aliases of a row's slash command, which are looked for but not listed."""
    action = BY_SLASH.get(left[left.find("/") :].split(" ", maxsplit=1)[0])
    return " ".join(action.aliases) if action else ""


def _stack(colors: Mapping[str, str], rows: Iterable[tuple[str, str]], reasons: Mapping[str, str]) -> Text:
    heading, key = f"bold {for_rich(colors['primary'])}", for_rich(colors["secondary"])
    quiet = for_rich(colors["quiet-text"])
    parts: list[tuple[str, str]] = []
    for left, right in rows:
        if reason := reasons.get(right):
            parts += [(f"{left}\n", quiet), (f"{right} Not now: {reason}.\n", quiet)]
        elif right:
            parts += [(f"{left}\n", key), (f"{right}\n", "")]
        else:
            parts.append((f"\n{left}\n" if parts else f"{left}\n", heading))
    return Text.assemble(*parts)


def _table(colors: Mapping[str, str], rows: Iterable[tuple[str, str]], reasons: Mapping[str, str]) -> Table:
    quiet = for_rich(colors["quiet-text"])
    table = Table.grid(padding=(0, 3, 0, 0), expand=True)
    table.add_column(style=for_rich(colors["secondary"]), ratio=2)
    table.add_column(ratio=5)
    for number, (left, right) in enumerate(rows):
        if reason := reasons.get(right):
            table.add_row(Text(left, style=quiet), Text(f"{right} Not now: {reason}.", style=quiet))
        elif right:
            table.add_row(Text(left), Text(right))
        else:
            if number:
                table.add_row("", "")
            table.add_row(Text(left, style=f"bold {for_rich(colors['primary'])}"), "")
    return table
