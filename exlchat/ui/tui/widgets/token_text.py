"""An answer token by token: each in the colour of its probability, and a cursor that goes from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from exlchat.app.panels.token_words import sureness
from exlchat.chat.answer_chances import probability
from exlchat.ui.render.themes import for_rich
from exlchat.ui.render.token_rows import END, TokenRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual import events

    from exlchat.app.panels.token_words import Sureness
    from exlchat.chat.answer_chances import AnswerChances

_COLORS: dict[Sureness, str] = {"sure": "foreground", "likely": "success", "unsure": "warning", "unlikely": "error"}


def chance_style(kind: Sureness, colors: Mapping[str, str]) -> Style:
    """How a token of this probability looks; what the model was not sure of is told without colours too."""
    return Style(
        color=for_rich(colors[_COLORS[kind]]), underline=kind in ("unsure", "unlikely"), bold=kind == "unlikely"
    )


class TokenText(ScrollView, can_focus=True):
    """Empty until `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Token before", show=False),
        Binding("right,l", "move(1)", "Token after", show=False),
        Binding("up,k", "row(-1)", "Row above", show=False),
        Binding("down,j", "row(1)", "Row below", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "end(False)", "First token", show=False),
        Binding("end,G", "end(True)", "Last token", show=False),
    ]

    @dataclass
    class Moved(Message, namespace="token_text"):
        place: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.place = 0
        self._chances: AnswerChances | None = None
        self._rows = TokenRows([], 1)
        self._looks: list[Style] = []

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self.refresh_looks())

    def show(self, chances: AnswerChances) -> None:
        self._chances = chances
        self.refresh_looks()
        self._lay_out()
        self.move_to(0)

    def refresh_looks(self) -> None:
        if self._chances is None:
            return
        colors = self.app.theme_variables
        quiet = Style(color=for_rich(colors["quiet"]))
        looks = {kind: chance_style(kind, colors) for kind in _COLORS}
        self._looks = [
            quiet if one.taken is None else looks[sureness(probability(one.taken))] for one in self._chances.places
        ]
        self.refresh()

    def move_to(self, place: int) -> None:
        if self._chances is None:
            return
        self.place = min(max(place, 0), len(self._chances.places) - 1)
        row = self._rows.row_of(self.place)
        self.scroll_to_region(Region(0, row, 1, 1), animate=False)
        self.refresh()
        self.post_message(self.Moved(self.place))

    def render_line(self, y: int) -> Strip:
        base, number = self.rich_style, self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        row = self._rows.rows[number] if number < len(self._rows.rows) else []
        return Strip([Segment(part.text, base + self._look(part.token)) for part in row]).adjust_cell_length(
            width, base
        )

    def _look(self, token: int) -> Style:
        look = self._looks[token]
        return look + Style(reverse=True, bold=True) if token == self.place else look

    def on_resize(self) -> None:
        if self._chances is not None:
            self._lay_out()
            self.scroll_to_region(Region(0, self._rows.row_of(self.place), 1, 1), animate=False)

    def _lay_out(self) -> None:
        assert self._chances is not None
        width = self.scrollable_content_region.width
        self._rows = TokenRows([*self._chances.pieces, END], width)
        self.virtual_size = Size(width, len(self._rows.rows))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        token = None if at is None else self._rows.at(self.scroll_offset.y + at.y, at.x)
        if token is not None:
            self.move_to(token)

    def action_move(self, by: int) -> None:
        self.move_to(self.place + by)

    def action_row(self, by: int) -> None:
        if self._chances is not None:
            self.move_to(self._rows.beside(self.place, by))

    def action_page(self, by: int) -> None:
        self.action_row(by * max(self.scrollable_content_region.height - 1, 1))

    def action_end(self, last: bool) -> None:
        self.move_to(len(self._looks) - 1 if last else 0)
