"""The list of conversations: open, rename, delete, undo."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.chat.model import ConversationSummary

CURRENT_MARK = "▌"
ANSWERING_MARK = "…"


class Sidebar(OptionList):
    """Conversations, newest first, under the day they were last used. A line API widget: thousands are no burden."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open", show=False, id="open-selected"),
        Binding("r", "rename", "Rename", id="rename-selected"),
        Binding("d,delete", "delete", "Delete", id="delete-selected"),
        Binding("u", "undo", "Undo delete", id="undo-delete"),
        Binding("escape", "leave", "Back", id="leave-sidebar"),
    ]

    @dataclass
    class Chosen(Message):
        conversation_id: str

    @dataclass
    class RenameWanted(Message):
        conversation_id: str

    @dataclass
    class DeleteWanted(Message):
        conversation_id: str

    class UndoWanted(Message):
        """Bring back what was deleted last."""

    class Left(Message):
        """Escape was pressed: back to the composer."""

    def show(
        self, summaries: Sequence[ConversationSummary], current: str | None, answering: str | None, today: datetime.date
    ) -> None:
        """Show `summaries` (newest first), with the open one and the one being answered marked."""
        highlighted = self._highlighted_id() or current
        options = list(_options(summaries, current, answering, today))
        self.clear_options()
        self.add_options(options)
        places = {option.id: at for at, option in enumerate(options) if option.id is not None}
        self.highlighted = places.get(highlighted or "", places.get(current or ""))

    def _highlighted_id(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None

    def on_focus(self) -> None:
        """With nothing highlighted the keys would do nothing."""
        if self.highlighted is None:
            self.highlighted = next((at for at, option in enumerate(self.options) if option.id is not None), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_id is not None:
            self.post_message(self.Chosen(event.option_id))

    def action_rename(self) -> None:
        if (conversation_id := self._highlighted_id()) is not None:
            self.post_message(self.RenameWanted(conversation_id))

    def action_delete(self) -> None:
        if (conversation_id := self._highlighted_id()) is not None:
            self.post_message(self.DeleteWanted(conversation_id))

    def action_undo(self) -> None:
        self.post_message(self.UndoWanted())

    def action_leave(self) -> None:
        self.post_message(self.Left())


def _options(
    summaries: Sequence[ConversationSummary], current: str | None, answering: str | None, today: datetime.date
) -> Iterable[Option]:
    heading = ""
    for summary in summaries:
        day = _day(datetime.date.fromtimestamp(summary.updated_at), today)
        if day != heading:
            if heading:
                yield Option("", disabled=True)
            yield Option(Content.styled(f" {day}", "$quiet-text"), disabled=True)
            heading = day
        yield Option(_row(summary, summary.id == current, summary.id == answering), id=summary.id)


def _row(summary: ConversationSummary, is_current: bool, is_answering: bool) -> Content:
    mark = Content.styled(CURRENT_MARK, "$primary") if is_current else Content(" ")
    title = printable(" ".join(summary.title.split()))
    answering = Content.styled(f" {ANSWERING_MARK}", "$secondary") if is_answering else Content("")
    return Content.assemble(mark, Content.styled(title, "$primary") if is_current else Content(title), answering)


def _day(day: datetime.date, today: datetime.date) -> str:
    age = (today - day).days
    if age <= 0:
        return "Today"
    if age == 1:
        return "Yesterday"
    if age < 7:
        return "This week"
    return f"{day:%B %Y}"
