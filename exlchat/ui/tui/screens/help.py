"""F1: keys and commands, generated from the registry of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.ui.actions import ACTIONS, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult

_KEY_CELLS = 34
_HEADINGS: dict[Place, str] = {"everywhere": "Keys", "composer": "In the message", "sidebar": "In the sidebar"}


class HelpScreen(ModalScreen[None]):
    """Any of the listed keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "dismiss_help", "Close", priority=True),
    ]

    def compose(self) -> ComposeResult:
        """One scrolling column, for terminals of any height."""
        with VerticalScroll(id="help"):
            yield Static(help_text(), id="help-text")

    def on_mount(self) -> None:
        """Say how to leave on the frame itself, where there is always room."""
        panel = self.query_one("#help")
        panel.border_title = "Help"
        panel.border_subtitle = "Esc closes"
        panel.focus()

    def action_dismiss_help(self) -> None:
        """Close."""
        self.dismiss()


def help_text() -> Content:
    """Everything of the registry: keys by place, then slash commands."""
    return Content("\n").join(list(_lines()))


def _lines() -> Iterable[Content]:
    for place, heading in _HEADINGS.items():
        yield Content.styled(heading, "bold $primary")
        for action in ACTIONS:
            if action.place == place and action.keys:
                yield _line(", ".join(action.keys), action.help)
        yield Content("")
    yield Content.styled("Commands", "bold $primary")
    for action in ACTIONS:
        if action.slash:
            yield _line(action.usage, action.help)
    yield _line("//text", "Send text that begins with a slash.")


def _line(left: str, right: str) -> Content:
    return Content.assemble("  ", Content.styled(left.ljust(_KEY_CELLS), "$secondary"), right)
