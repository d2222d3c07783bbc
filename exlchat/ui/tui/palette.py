"""What ctrl+p finds: actions that can be done now, themes, conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual import events
from textual.binding import Binding, BindingType
from textual.command import Command, CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input

from exlchat.untrusted.sanitize import PRINTABLE_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from textual.screen import Screen
    from textual.types import IgnoreReturnCallbackType

THEME_PREFIX = "Theme: "
_CONVERSATIONS_SHOWN_AT_FIRST = 8


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """`help` is a dimmed line below, written by us: it is read as markup."""

    title: str
    help: str
    run: IgnoreReturnCallbackType
    dimmed: bool = False

    @property
    def drawn(self) -> Content:
        """Its title; what cannot be done with this model steps back."""
        return Content.styled(self.title, "$quiet-text" if self.dimmed else "")


@dataclass(frozen=True, slots=True)
class Opening:
    """What an entry of a conversation does: opens it `here`, or `beside` the one that is open."""

    here: Callable[[], object]
    beside: Callable[[], object]

    def __call__(self) -> object:
        return self.here()


class PaletteSource(Protocol):
    def palette_entries(self) -> tuple[Sequence[PaletteEntry], Sequence[PaletteEntry]]:
        """What is always listed, actions and themes; and conversations, newest first."""


class Palette(CommandPalette):
    """Textual's palette, whose search field draws what is pasted into it as it is."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+t", "open_beside", "Open in a tab", show=False)]

    def on_mount(self, event: events.Mount) -> None:
        """Take no character that could steer the terminal."""
        if self not in self.app.screen_stack[1:]:
            # Left before it was drawn: what Textual (8.2) does next fails then.
            event.prevent_default()
            return
        self.query_one(Input).restrict = PRINTABLE_LINE

    def action_open_beside(self) -> None:
        """Open the conversation under the cursor, else the first one that was found, in a tab of its own."""
        found = self.query_one(CommandList)
        if not found.option_count:
            return
        option = found.get_option_at_index(found.highlighted or 0)
        opening = option.hit.command if isinstance(option, Command) else None
        if isinstance(opening, Opening):
            self.dismiss()
            self.app.call_later(opening.beside)
        else:
            self.notify("Only a conversation opens in a tab")


class ChatProvider(Provider):
    """Lists actions, themes and the newest conversations at once; searches all of them."""

    def __init__(self, screen: Screen[Any], match_style: Any = None) -> None:
        super().__init__(screen, match_style)
        self._entries: list[PaletteEntry] = []
        self._first: list[PaletteEntry] = []

    async def startup(self) -> None:
        fixed, conversations = cast("PaletteSource", self.screen).palette_entries()
        self._entries = [*fixed, *conversations]
        self._first = [*fixed, *conversations[:_CONVERSATIONS_SHOWN_AT_FIRST]]

    async def discover(self) -> Hits:
        for entry in self._first:
            yield DiscoveryHit(entry.drawn, entry.run, text=entry.title, help=entry.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._entries:
            score, offsets = matcher.fuzzy_search.match(query, entry.title)
            if score > 0:
                # Not `matcher.highlight`: that one reads a title as markup.
                title = entry.drawn
                for offset in offsets:
                    title = title.stylize(matcher.match_style, offset, offset + 1)
                yield Hit(score, title, entry.run, text=entry.title, help=entry.help)
