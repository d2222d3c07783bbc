"""Finding a text in the open conversation, between the bar where it is typed and the transcript that marks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError

if TYPE_CHECKING:
    from exlchat.ui.tui.chat_view import ChatView


class ConversationFinder:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen

    def open(self, text: str = "") -> None:
        """Ask what to find.

        Raises:
            NotPossibleError: there is nothing to look through.
        """
        if not self._screen.session.branch:
            raise NotPossibleError("there are no messages to look through yet")
        self._screen.find_bar.open(text)

    def look_for(self, text: str) -> None:
        self._count(len(self._screen.transcript.look_for(text)), None)

    def step(self, by: int) -> None:
        """Go to the next place (1) or the one before (-1)."""
        transcript = self._screen.transcript
        found = transcript.look_for(self._screen.find_bar.field.value)
        self._count(len(found), transcript.go_to_found(by), found)

    def leave(self) -> None:
        screen = self._screen
        screen.transcript.look_for("")
        if screen.transcript.cursor is not None and screen.session.branch:
            screen.transcript.focus()
        else:
            screen.composer.focus()

    def _count(self, many: int, place: int | None, found: tuple[int, ...] = ()) -> None:
        bar = self._screen.find_bar
        number = f"{found.index(place) + 1} of " if place in found else ""
        messages = "1 message" if many == 1 else f"{many} messages"
        bar.count.update(f"{number}{messages}" if bar.field.value else "")
