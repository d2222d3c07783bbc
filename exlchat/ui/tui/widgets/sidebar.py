"""The list of conversations: open one, mark several, and ask for what is to be done with them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exlchat.app.chat.list_order import ASKED, folder_of, in_order
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from exlchat.chat.model import ConversationSummary

CURRENT_MARK = "▌"
ANSWERING_MARK = "…"
MARKED = "●"
_TAGS = 8
_FOLD = "fold"
"""Id of the heading above what was asked from the shell; no conversation has it."""


class Sidebar(OptionList):
    """Conversations, newest first, under the day they were last used. A line API widget: thousands are no burden."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open", show=False, id="open-selected"),
        Binding("space", "mark", "Mark", id="mark-selected"),
        *(
            Binding(keys, f"want('{name}-selected')", title, id=f"{name}-selected")
            for keys, name, title in (
                ("t", "tab", "Open in a tab"),
                ("r", "rename", "Rename"),
                ("d,delete", "delete", "Delete"),
                ("g", "tag", "Tags"),
                ("f", "folder", "Folder"),
                ("p", "pin", "On top"),
                ("a", "archive", "Archive"),
                ("x", "export", "Export"),
            )
        ),
        Binding("u", "undo", "Undo delete", id="undo-delete"),
        Binding("escape", "leave", "Back", id="leave-sidebar"),
    ]

    @dataclass
    class Chosen(Message):
        conversation_id: str

    @dataclass
    class Wanted(Message):
        """An action of the registry is wanted of these: of all that are marked, else of the one under the cursor."""

        action_id: str
        conversation_ids: tuple[str, ...]

    class UndoWanted(Message):
        """Bring back what was deleted last."""

    class Left(Message):
        """Escape was pressed: back to the composer."""

    def __init__(self, *, id: str | None = None, markup: bool = True) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, markup=markup)
        self.marked: set[str] = set()
        self._asked_shown = False
        self._shown: tuple[Sequence[ConversationSummary], str | None, Collection[str], datetime.date] | None = None

    def show(
        self,
        summaries: Sequence[ConversationSummary],
        current: str | None,
        answering: Collection[str],
        today: datetime.date,
    ) -> None:
        """Show `summaries` (newest first), with the open one and those being answered marked."""
        self._shown = summaries, current, answering, today
        self.marked &= {summary.id for summary in summaries}
        highlighted = (self.highlighted_option.id if self.highlighted_option is not None else None) or current
        options = list(_options(summaries, current, answering, today, self.marked, asked_shown=self._asked_shown))
        self.clear_options()
        self.add_options(options)
        places = {option.id: at for at, option in enumerate(options) if option.id is not None}
        self.highlighted = places.get(highlighted or "", places.get(current or ""))

    def _highlighted_id(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None and option.id != _FOLD else None

    def _show_again(self) -> None:
        if self._shown is not None:
            self.show(*self._shown)

    def on_focus(self) -> None:
        """With nothing highlighted the keys would do nothing."""
        if self.highlighted is None:
            self.highlighted = next((at for at, option in enumerate(self.options) if option.id is not None), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id == _FOLD:
            self._asked_shown = not self._asked_shown
            self._show_again()
        elif event.option_id is not None:
            self.post_message(self.Chosen(event.option_id))

    def action_want(self, action_id: str) -> None:
        in_order = tuple(option.id for option in self.options if option.id is not None and option.id in self.marked)
        here = self._highlighted_id()
        if idents := in_order or ((here,) if here is not None else ()):
            self.post_message(self.Wanted(action_id, idents))

    def action_mark(self) -> None:
        if (here := self._highlighted_id()) is not None:
            self.marked ^= {here}
            self._show_again()
            self.action_cursor_down()

    def action_undo(self) -> None:
        self.post_message(self.UndoWanted())

    def action_leave(self) -> None:
        """Escape takes the marks away first."""
        if self.marked:
            self.marked.clear()
            self._show_again()
            return
        self.post_message(self.Left())


def _options(
    summaries: Sequence[ConversationSummary],
    current: str | None,
    answering: Collection[str],
    today: datetime.date,
    marked: Collection[str],
    *,
    asked_shown: bool,
) -> Iterable[Option]:
    """Those on top, those in folders by their names, then the rest by days; what was asked from the shell is folded.

    Of what is folded only what is open, or answered, or marked, is there.
    """
    last = ""
    asked = sum(_is_asked(one) for one in summaries)
    for summary in in_order(summaries):
        heading = _heading(summary, today)
        if heading != last:
            if last:
                yield Option("", disabled=True)
            if _is_asked(summary):
                told = f" {'▾' if asked_shown else '▸'} asked from the shell ({asked:,})"
                yield Option(Content.styled(told, "$quiet-text"), id=_FOLD)
            else:
                yield Option(Content.styled(f" {printable(heading)}", "$quiet-text"), disabled=True)
            last = heading
        if _is_asked(summary) and not (asked_shown or summary.id in (current, *answering, *marked)):
            continue
        row = _row(summary, summary.id == current, summary.id in answering, is_marked=summary.id in marked)
        yield Option(row, id=summary.id)


def _is_asked(summary: ConversationSummary) -> bool:
    return not summary.pinned and folder_of(summary.tags) == ASKED


def _heading(summary: ConversationSummary, today: datetime.date) -> str:
    if summary.pinned:
        return "On top"
    if folder := folder_of(summary.tags):
        return f"{folder}/"
    return _day(datetime.date.fromtimestamp(summary.updated_at), today)


def _row(summary: ConversationSummary, is_current: bool, is_answering: bool, *, is_marked: bool) -> Content:
    mark = Content.styled(MARKED if is_marked else CURRENT_MARK if is_current else " ", "$primary")
    title = printable(" ".join(summary.title.split()))
    tags = "".join(f" #{printable(tag)}" for tag in summary.tags[:_TAGS] if not tag.endswith("/"))
    return Content.assemble(
        mark,
        Content.styled(title, "$primary") if is_current else Content(title),
        Content.styled(tags, "$quiet-text"),
        Content.styled(f" {ANSWERING_MARK}", "$secondary") if is_answering else Content(""),
    )


def _day(day: datetime.date, today: datetime.date) -> str:
    age = (today - day).days
    if age <= 0:
        return "Today"
    if age == 1:
        return "Yesterday"
    if age < 7:
        return "This week"
    return f"{day:%B %Y}"
