"""Answers in the transcript: as they begin, grow and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.message_words import names_over
from exlchat.app.runtime.jobs import Loaded, LoadFailed
from exlchat.ui.tui.items import SEEN_FROM, live_items, message_items, thoughts_key, waiting_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.runtime.model_state import ModelReport
    from exlchat.chat.model import Message
    from exlchat.chat.turn_events import AnswerClosed, AnswerStarted
    from exlchat.llm.events import TextDelta
    from exlchat.ui.tui.chat_view import ChatView


class AnswerDisplay:
    """An `AnswerView`. Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView, recount: Callable[[], None]) -> None:
        """`recount` counts the tokens that are typed anew, by another model."""
        self._screen = screen
        self._recount = recount

    def begin(self, answering: PendingAnswer, notices: Sequence[str], *, moved: bool) -> None:
        screen, transcript, message = self._screen, self._screen.transcript, answering.message
        assert message is not None
        seen_from = message.record.seen_from if message.record else None
        moved = moved or (seen_from is None and transcript.holds(SEEN_FROM))
        if moved or answering.replaces is not None or transcript.holds(message.id):
            # It is there already when the conversation was opened after the answer began and before we heard of it.
            screen.show_messages(but=message.id)
        for notice in notices:
            screen.note(notice)
        screen.take_away(waiting_key(answering.conversation_id))
        name = names_over(screen.session.branch).get(message.id, "")
        for item in live_items(message, "".join(answering.thoughts), "".join(answering.answer), name):
            transcript.append_message(item)
        if transcript.has_focus and transcript.cursor is None:
            # What the answer takes the place of was under the cursor.
            transcript.move_cursor_to(message.id)
        screen.refresh_around()

    def grow(self, answering: PendingAnswer) -> bool:
        transcript, message = self._screen.transcript, answering.message
        if message is None or not transcript.holds(message.id):
            return False
        for piece in answering.fresh:
            key = thoughts_key(message.id) if piece.channel == "thought" else message.id
            if transcript.holds(key):
                transcript.append_text(key, piece.text)
                continue
            # There is no word of the answer yet.
            transcript.remove_message(message.id)
            for item in live_items(message, piece.text, ""):
                transcript.append_message(item)
        return True

    def close(self, closed: AnswerClosed) -> None:
        screen, message = self._screen, closed.message
        if not closed.kept:
            screen.show_messages()
            screen.note("Stopped before there was any text.")
            return
        if not screen.transcript.holds(message.id):
            return
        items = message_items(message, screen.session.places)
        if all(screen.transcript.holds(item.key) for item in items):
            for item in items:
                screen.transcript.close_message(
                    item.key, item.text, footer=item.footer, status=item.status, fold=item.fold
                )
                if item.folded:
                    screen.transcript.show_as(item.key, "folded")
        else:
            screen.show_messages()
        screen.show_figures()

    def one_of_several(
        self, one: PendingAnswer | None, index: int, event: AnswerStarted | TextDelta | AnswerClosed
    ) -> None:
        """Nothing: they stand side by side on a screen of their own, which looks for them itself."""

    def ended(self, answering: PendingAnswer, *, failed: bool, prompt: Message | None, seconds: float) -> None:
        """Told outside of the window too, after a long wait."""
        del failed
        screen = self._screen
        after = screen.shelf.settings.notify_after
        if after and seconds >= after and not screen.app.app_focus:
            screen.tell_desktop("exlchat: the answer has ended")
        if answering.conversation_id != screen.session.conversation_id:
            return
        screen.take_away(waiting_key(answering.conversation_id))
        if answering.for_several:
            screen.show_messages()
        if prompt is not None:
            screen.show_prompt(prompt)

    @property
    def can_take_back(self) -> bool:
        return not self._screen.composer.text.strip()

    def take_back(self, prompt: str) -> None:
        self._screen.composer.set_text(prompt)

    def failed(self, line: str) -> None:
        self._screen.show_messages()
        self._screen.note(line)

    def model_changed(self, report: ModelReport, told: str | None) -> None:
        """In the transcript; an empty conversation shows in the place of its first line why there is no model.

        Of two screens the one that is in sight says what has no place in a transcript.
        """
        screen = self._screen
        if isinstance(report, Loaded):
            self._recount()
        if told is not None and (screen.session.branch or (screen.in_sight and not isinstance(report, LoadFailed))):
            screen.note(told)
        screen.show_waiting()
        screen.refresh_around()
