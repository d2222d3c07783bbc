"""A list to choose from, narrowed or filled by what is typed, with more about the chosen line below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.store.conversations import StoreError
from exlchat.untrusted.sanitize import PRINTABLE_LINE, normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult


_COLUMN_CELLS = 32


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the list.

    Args:
        id: what choosing it gives.
        text: shown first, and looked through.
        detail: shown behind it, quieter, and looked through.
        marked: whether it is the one that holds now.
        shown: what stands there instead, in one line or several, where text and detail in one are not enough.
    """

    id: str
    text: str
    detail: str = ""
    marked: bool = False
    shown: Content | None = None


def narrowed(rows: Sequence[Row]) -> Callable[[str], Sequence[Row]]:
    """The rows that have all words of what is typed."""

    def having(typed: str) -> Sequence[Row]:
        words = typed.casefold().split()
        return [row for row in rows if all(word in f"{row.text} {row.detail}".casefold() for word in words)]

    return having


class PickScreen(ModalScreen[str | None]):
    """Gives the id of the chosen row, or `None` when it was left with Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("up", "move('cursor_up')", "Up", priority=True),
        Binding("down", "move('cursor_down')", "Down", priority=True),
        Binding("pageup", "move('page_up')", "Page up", priority=True),
        Binding("pagedown", "move('page_down')", "Page down", priority=True),
    ]

    field = getters.query_one("#pick-field", Input)
    options = getters.query_one("#pick-list", OptionList)
    more = getters.query_one("#pick-more", Static)

    def __init__(
        self,
        title: str,
        rows: Callable[[str], Sequence[Row]],
        *,
        hint: str,
        placeholder: str = "Type to narrow the list",
        preview: Callable[[str], str | Content] | None = None,
        typed: str = "",
    ) -> None:
        """`rows` gives those for what is typed; `preview` the text below the list for the id of a row.

        What either cannot give is a line below the list.
        """
        super().__init__()
        self._title, self._hint = title, hint
        self._rows = rows
        self._placeholder = placeholder
        self._preview = preview
        self._typed = typed
        self._shown: Sequence[Row] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="pick"):
            yield Input(self._typed, id="pick-field", placeholder=self._placeholder, restrict=PRINTABLE_LINE)
            yield OptionList(id="pick-list", markup=False)
            with VerticalScroll(id="pick-preview"):
                yield Static("", id="pick-more", markup=False)

    def on_mount(self) -> None:
        frame = self.query_one("#pick")
        frame.border_title, frame.border_subtitle = self._title, self._hint
        self.options.can_focus = self.query_one("#pick-preview").can_focus = False
        self.query_one("#pick-preview").display = self._preview is not None
        self.field.focus()
        self._fill()

    @on(Input.Changed)
    def _fill(self) -> None:
        try:
            self._shown = self._rows(self.field.value)
            problem = ""
        except (StoreError, NotPossibleError) as error:
            self._shown, problem = (), str(error)
        self.options.clear_options()
        column = _column(self._shown)
        self.options.add_options([Option(_line(row, column)) for row in self._shown])
        marked = next((place for place, row in enumerate(self._shown) if row.marked), 0)
        self.options.highlighted = marked if self._shown else None
        if not self._shown and self.field.value:
            self._tell(problem or "Nothing has that in it")

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._preview is not None and event.option_index < len(self._shown):
            try:
                self._tell(self._preview(self._shown[event.option_index].id))
            except StoreError as error:
                self._tell(str(error))
            self.query_one("#pick-preview", VerticalScroll).scroll_home(animate=False)

    def _tell(self, text: str | Content) -> None:
        self.more.update(text if isinstance(text, Content) else printable(normalize_newlines(text)))

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index].id)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        if self.options.highlighted is not None:
            self.dismiss(self._shown[self.options.highlighted].id)

    def action_move(self, how: str) -> None:
        getattr(self.options, f"action_{how}")()

    def action_leave(self) -> None:
        self.dismiss(None)


def _column(rows: Sequence[Row]) -> int:
    """Cells of the texts, so that what is behind them stands in a column; a few long texts go beyond it."""
    widths = (Content(_plain(row.text)).cell_length for row in rows if row.detail and row.shown is None)
    return max((cells for cells in widths if cells <= _COLUMN_CELLS), default=0)


def _plain(text: str) -> str:
    return printable(normalize_newlines(text).replace("\n", " "))


def _line(row: Row, column: int) -> Content:
    if row.shown is not None:
        return row.shown
    mark = Content.styled("● ", "$primary") if row.marked else Content("  ")
    text, detail = Content(_plain(row.text)), _plain(row.detail)
    if not detail:
        return Content.assemble(mark, text)
    gap = " " * (max(column - text.cell_length, 0) + 2)
    return Content.assemble(mark, text, gap, Content.styled(detail, "$quiet-text"))
