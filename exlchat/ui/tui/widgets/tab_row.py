"""The row of open conversations, which is there when there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.widgets import Tab, Tabs

from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from textual.app import ComposeResult

_TITLE_CELLS = 24
ANSWERING_MARK = "…"


@dataclass(frozen=True, slots=True)
class Shown:
    """A tab: the conversation (`None` is the new one), its title, whether it is being answered, and what stands before
    the title."""

    ident: str | None
    title: str
    answering: bool
    mark: str = ""


class TabRow(Container):
    @dataclass
    class Chosen(Message):
        ident: str | None

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._shown: Sequence[Shown] = ()
        self._at = 0

    def compose(self) -> ComposeResult:
        if self._shown:
            row = [_ConversationTab(one) for one in self._shown]
            tabs = Tabs(*row, active=_dom_id(self._shown[self._at]))
            tabs.can_focus = False
            yield tabs

    def show(self, tabs: Sequence[Shown], at: int) -> None:
        """Show these, the one at that place as the one that is open; one alone is not shown."""
        wanted = tabs if len(tabs) > 1 else ()
        before, self._shown, self._at = self._shown, wanted, at
        self.set_class(bool(wanted), "-several")
        there = list(self.query(Tab))
        if [tab.id for tab in there] != [_dom_id(one) for one in wanted]:
            self.refresh(recompose=True)
        elif wanted:
            for tab, one, old in zip(there, wanted, before, strict=True):
                if one != old:
                    tab.label = _label(one)
            self.query_one(Tabs).active = _dom_id(wanted[at])


class _ConversationTab(Tab):
    """Only a click chooses: that a tab was made the active one is told late, when somebody may have gone on."""

    def __init__(self, one: Shown) -> None:
        super().__init__(_label(one), id=_dom_id(one))
        self._ident = one.ident

    def on_click(self) -> None:
        self.post_message(TabRow.Chosen(self._ident))


def _dom_id(one: Shown) -> str:
    return f"tab-{one.ident or 'new'}"


def _label(one: Shown) -> Content:
    title = printable(one_line(one.title, _TITLE_CELLS))
    return Content(f"{one.mark}{title}{f' {ANSWERING_MARK}' if one.answering else ''}")
