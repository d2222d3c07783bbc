"""Finding a text in the open conversation, between the bar where it is typed and the transcript that marks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from exlchat.app.chat.found import words_found
from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.plain_text import plain
from exlchat.ui.tui.items import thoughts_key

if TYPE_CHECKING:
    from exlchat.chat.store.search import SearchHit
    from exlchat.ui.tui.chat_view import ChatView


_LAID_OUT_WITHIN = 5
"""Paints after which something that has come to be shown has a size."""


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

    def show(self, hit: SearchHit) -> None:
        """Go to the sentence of a message that is shown, and mark the words there, once it is laid out."""
        sentence = plain(hit.snippet, hit.marks)
        transcript, message_id = self._screen.transcript, hit.message_id or ""
        transcript.look_for(*words_found(hit), only_words=True)
        words = re.findall(r"\w+", sentence.text)
        self._screen.call_after_refresh(
            self._go_to, (message_id, thoughts_key(message_id)), words, tries=_LAID_OUT_WITHIN
        )

    def _go_to(self, keys: tuple[str, str], words: list[str], *, tries: int) -> None:
        transcript = self._screen.transcript
        if not transcript.window.height and tries:
            # It was hidden while nothing was open.
            self._screen.call_after_refresh(self._go_to, keys, words, tries=tries - 1)
        else:
            transcript.go_to_sentence(keys, words)

    def go_on(self, by: int) -> None:
        """Go to the next place of what is marked (1) or the one before (-1).

        Raises:
            NotPossibleError: nothing is.
        """
        if not self._screen.transcript.marks_something:
            raise NotPossibleError("nothing is looked for; ctrl+f looks in this conversation, f3 in all")
        self._screen.transcript.go_to_found(by)

    def forget(self) -> None:
        """Mark nothing more, unless it is still being looked for."""
        if not self._screen.find_bar.display:
            self._screen.transcript.look_for("")

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
