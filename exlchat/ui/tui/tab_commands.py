"""Several conversations open beside each other: which they are, and where somebody was in each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from exlchat.app.chat.open_tabs import MOST_TABS
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.conversations import TITLE_CELLS, numbered
from exlchat.chat.model import UNTITLED
from exlchat.chat.store.conversations import StoreError
from exlchat.ui.tui.widgets.tab_row import Shown
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.screen import Screen

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.services import Services
    from exlchat.chat.model import ConversationSummary
    from exlchat.ui.tui.widgets.composer import Composer
    from exlchat.ui.tui.widgets.tab_row import TabRow
    from exlchat.ui.tui.widgets.transcript import Transcript

_INCOGNITO = "incognito"
_KEPT = "kept conversations"
_ONLY_ONE = "only one conversation is open; /tab opens another one beside it"


OTHER_SIDE = "other-side"
"""The tab that stands for the other screen, in the place of the id of a conversation."""


class Sides(Protocol):
    """The screen of conversations that are kept, and beside it that of those that are not."""

    @property
    def is_there(self) -> bool:
        """Whether there is a second one."""

    @property
    def is_answering(self) -> bool:
        """Whether an answer grows on the one that is not shown."""

    def arrived(self, screen: Screen[None]) -> None:
        """One of them is there."""

    def heard(self, report: Report) -> None:
        """The first one has heard of the model."""

    def turn(self) -> None:
        """Show the other one, which is made if need be."""

    def keep(self) -> None:
        """Put the open conversation among those that are kept."""

    def close(self) -> None:
        """Forget what is kept nowhere."""


class TabbedView(Protocol):
    """The screen, as far as tabs need it."""

    session: ChatSession
    services: Services
    sides: Sides

    @property
    def transcript(self) -> Transcript: ...

    @property
    def composer(self) -> Composer: ...

    @property
    def tab_row(self) -> TabRow: ...

    def leave_conversation(self) -> None: ...

    def show_conversation(self) -> None: ...

    def open_conversation(self, conversation_id: str) -> bool: ...

    def start_new(self) -> None: ...

    def tell(self, line: str, *, warning: bool = False) -> None: ...

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where somebody was.

    Args:
        top: what stood at the top; `None` where the end was followed.
        message: the one under the cursor.
        typed_at: row and column of the cursor in what is typed.
    """

    top: tuple[int, int, int] | None
    message: str | None
    typed_at: tuple[int, int]


class ConversationTabs:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: TabbedView) -> None:
        self._screen = screen
        self._open = screen.services.tabs
        self._places: dict[str | None, _Place] = {}
        self._titles: dict[str, str] = {}

    def restore(self) -> bool:
        """Open those of the last start, if there were several; whether one of them is shown."""
        self._open.read()
        if not self._open.are_several:
            return False
        self._open.drop(self._is_gone)
        ident = self._open.shown
        return ident is not None and not self._is_gone(ident) and self._screen.open_conversation(ident)

    # What somebody does

    def show_beside(self, ident: str) -> None:
        """Open a conversation in a tab of its own, or go to the one that it has."""
        self._require_room(ident)
        self._screen.leave_conversation()
        self._screen.session.open(ident)
        self._open.add(ident)
        self._screen.show_conversation()

    def open_new(self, number: str) -> None:
        """A new conversation, or the one of that number in the list."""
        session = self._screen.session
        if number:
            self.show_beside(numbered(session, number).id)
            return
        if session.draft_id is None:
            raise NotPossibleError("this conversation is new already; /tab N opens the Nth of the list beside it")
        self._require_room(None)
        self._screen.leave_conversation()
        if None not in self._open.idents:
            self._open.add(None)
            self._screen.start_new()
            self._screen.show_conversation()
        else:
            self._go(None)
        self._screen.composer.focus()

    def step(self, by: int) -> None:
        """Go to the tab that many places on."""
        self._require_several()
        row = self._row()
        self.go_to(row[(row.index(self._open.shown) + by) % len(row)])

    def go_to(self, ident: str | None) -> None:
        if ident == OTHER_SIDE:
            self._screen.sides.turn()
        elif ident != self._open.shown:
            self._screen.leave_conversation()
            self._go(ident)

    def close(self) -> None:
        """Close the tab that is shown; its conversation stays on the list, and an answer in it goes on.

        With the last one that is kept nowhere, all of those go.
        """
        if not self._open.are_several and not self._screen.services.kept and self._screen.sides.is_there:
            self._screen.sides.close()
            return
        if not self._open.are_several:
            raise NotPossibleError(_ONLY_ONE)
        self._screen.leave_conversation()
        self._open.close()
        self._go(self._open.shown)

    def _go(self, ident: str | None) -> None:
        session = self._screen.session
        if ident is None:
            session.show_new()
        else:
            session.open(ident)
        self._open.show(session.conversation_id)
        self._screen.show_conversation()

    def _row(self) -> list[str | None]:
        """What the tabs stand for, in their order: what is kept comes before what is not."""
        own, other = list(self._open.idents), [OTHER_SIDE] if self._screen.sides.is_there else []
        return [*own, *other] if self._screen.services.kept else [*other, *own]

    def _require_several(self) -> None:
        if len(self._row()) < 2:
            raise NotPossibleError(_ONLY_ONE)

    def _require_room(self, ident: str | None) -> None:
        if self._open.is_full and ident not in self._open.idents:
            raise NotPossibleError(f"{MOST_TABS} conversations are open, and no more can be; /close closes one")

    # Where somebody was

    def leave_place(self) -> None:
        screen = self._screen
        self._places[screen.session.conversation_id] = _Place(
            screen.transcript.place(), screen.transcript.cursor, screen.composer.cursor_location
        )

    def take_place(self) -> None:
        """Go to where somebody was in the open conversation, if it was left in a tab."""
        screen, session = self._screen, self._screen.session
        place = self._places.pop(session.conversation_id, None)
        if place is None:
            return
        screen.composer.move_cursor(place.typed_at)
        if place.message is not None and screen.transcript.holds(place.message):
            screen.transcript.move_cursor_to(place.message)
        if place.top is not None:
            screen.call_after_refresh(self._scroll_to, session.conversation_id, place.top)

    def _scroll_to(self, ident: str | None, top: tuple[int, int, int]) -> None:
        """Once it is laid out, and unless somebody has gone to another place by now, as a search does."""
        if ident == self._screen.session.conversation_id and self._screen.transcript.following:
            self._screen.transcript.go_back_to(top)

    # The row

    def refresh(self, summaries: Sequence[ConversationSummary]) -> None:
        """Show which are open now; one that was deleted has no tab any more, which is said."""
        session, tabs = self._screen.session, self._open
        tabs.show(session.conversation_id)
        self._titles.update({one.id: one.title for one in summaries})
        if session.conversation is not None:
            self._titles[session.conversation.id] = session.conversation.title
        self._places = {ident: place for ident, place in self._places.items() if ident in tabs.idents}
        if tabs.are_several:
            listed = {one.id for one in summaries}
            for ident in tabs.drop(lambda one: one not in listed and self._is_gone(one)):
                title = one_line(self._titles.get(ident, UNTITLED), TITLE_CELLS)
                self._screen.tell(f"“{title}” was deleted, so its tab is closed")
        tabs.keep()
        row = self._row()
        self._screen.tab_row.show(list(map(self._shown, row)), row.index(tabs.shown))

    def _shown(self, ident: str | None) -> Shown:
        kept = self._screen.services.kept
        if ident == OTHER_SIDE:
            return Shown(ident, _INCOGNITO if kept else _KEPT, self._screen.sides.is_answering)
        answered = self._screen.session.under_way_in(ident or "") is not None
        return Shown(ident, self._title(ident), answered, mark="" if kept else f"{_INCOGNITO}: ")

    def _title(self, ident: str | None) -> str:
        if ident is None:
            return UNTITLED
        if ident not in self._titles:
            try:
                self._titles[ident] = self._screen.session.store.load(ident).title
            except StoreError:
                return UNTITLED
        return self._titles[ident]

    def _is_gone(self, ident: str) -> bool:
        try:
            return self._screen.session.store.is_deleted(ident)
        except StoreError:
            return False
