"""The prompt laid open: every token, coloured by message, what the cache holds shaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from exlchat.ui.render.themes import for_rich
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult

    from exlchat.chat.prompt.inspection import Inspected

_MOST_TOKENS = 20_000
"""Shown at once, the last ones: more would take seconds to lay out, and nobody reads them."""


class PromptScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,f4", "dismiss_panel", "Close", priority=True)]

    def __init__(self, prompt: Inspected) -> None:
        super().__init__()
        self._prompt = prompt

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="prompt-panel"):
            yield Static(told(self._prompt), id="prompt-told", markup=False)
            yield Static(painted(self._prompt, self.app.theme_variables), id="prompt-text")

    def on_mount(self) -> None:
        panel = self.query_one("#prompt-panel", VerticalScroll)
        panel.border_title = "Prompt"
        panel.border_subtitle = "underlined: every second token · shaded: in the cache · Esc closes"
        panel.focus()
        panel.call_after_refresh(panel.scroll_end, animate=False)

    def action_dismiss_panel(self) -> None:
        self.dismiss()


def told(prompt: Inspected) -> str:
    """A few lines about it: tokens, what of them the cache holds, and the tokens of each message."""
    layout = prompt.layout
    lines = [
        f"{one_line(prompt.form, 60)} · {len(layout.ids):,} tokens · {prompt.cached:,} in the cache · "
        f"{len(layout.ids) - prompt.cached:,} to be read"
    ]
    for one in layout.messages:
        if one.first is None or one.last is None:
            lines.append(f"{one.role}: changed by the format, or left out")
        else:
            lines.append(f"{one.role}: {one.last - one.first:,} tokens, {one.first:,} to {one.last - 1:,}")
    if len(layout.ids) > _MOST_TOKENS:
        lines.append(f"Below are the last {_MOST_TOKENS:,} tokens; exlchat template show prints all")
    return "\n".join(lines) + "\n"


def painted(prompt: Inspected, colors: Mapping[str, str]) -> Text:
    """The text of the tokens, each message in the colour of who says it, marks of the format quiet."""
    layout = prompt.layout
    owner = layout.owners()
    text = Text()
    first = max(len(layout.ids) - _MOST_TOKENS, 0)
    for place in range(first, len(layout.ids)):
        role = owner.get(place)
        style = Style(
            color=for_rich(colors[f"roles-{role}"] if role else colors["quiet"]),
            bgcolor=for_rich(colors["panel"]) if place < prompt.cached else None,
            underline=place % 2 == 1,
        )
        text.append(printable(layout.pieces[place]), style)
    return text
