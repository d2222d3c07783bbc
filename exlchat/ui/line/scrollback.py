"""What is written of the open conversation: each message once, as it comes or when the conversation is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.message_words import (
    WRITTEN_ELSEWHERE,
    footer,
    greeting_ids,
    persona_line,
    seen_line,
    unanswered_line,
)
from exlchat.app.presenter import waits_for
from exlchat.chat.model import newest_record
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import char_of, label_of
from exlchat.llm.events import TextDelta
from exlchat.ui.line.answer import AnswerLines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.runtime.model_state import ModelState
    from exlchat.chat.model import Message
    from exlchat.ui.line.console import Console
    from exlchat.ui.line.formatter import Fragments

_PAINT_EVERY_SECONDS = 1 / 30
_SHOWN = 20
"""How many messages of a conversation are shown when it is opened."""
_WAITING_SHOWN = 3
_WHOLE_LINES = 8
"""The system prompt of a persona that has more is said in one line."""


class Scrollback:
    """Belongs to one chat and runs on its thread.

    Args:
        session: whose open conversation.
        model: which is there.
        console: what is written on.
        later: calls something after some seconds.
    """

    def __init__(
        self,
        session: ChatSession,
        model: ModelState,
        console: Console,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._session = session
        self._model = model
        self._console = console
        self._later = later
        self._lines: AnswerLines | None = None
        """Of the answer that grows in the open conversation."""
        self._message_id: str | None = None
        self._tail: list[Fragments] = []
        self._paint_is_due = False
        self._written: set[str] = set()
        self._left_out: set[str] = set()
        """Messages that count as written because they are too far above the end."""
        self._seen_from: str | None = None

    @property
    def speaker(self) -> str:
        return one_line(self._session.spoken.who or self._model.name, 40) or "The model"

    def put(self, lines: list[Fragments]) -> None:
        """Lines behind what an answer has brought so far."""
        self.write_finished()
        self._console.put(lines)

    def note(self, text: str) -> None:
        self.put(self._console.formatter.remark("note", text))

    # Messages

    def show_conversation(self, *, titled: bool) -> None:
        """The last messages of the conversation that was opened, with its title where it is one to come back to."""
        session, branch = self._session, self._session.branch
        self._left_out = {message.id for message in branch[:-_SHOWN]}
        self._written = set(self._left_out)
        record = newest_record(branch)
        self._seen_from = record.seen_from if record is not None else None
        if session.conversation is None or not branch:
            return
        formatter = self._console.formatter
        lines = formatter.remark("note", f"— {one_line(session.conversation.title, 60)} —") if titled else []
        if len(branch) > _SHOWN:
            lines += formatter.remark("footer", f"— {len(branch) - _SHOWN} earlier messages —")
        if lines:
            self.put([*lines, *formatter.gap()])
        if record is not None and self._seen_from in self._written:
            self.put(formatter.remark("footer", seen_line(record, any_pinned=any(one.pinned for one in branch))))
        self.show_new()
        if branch[-1].role == "user" and session.answering is None:
            self.note(unanswered_line("/retry"))

    def show_new(self) -> None:
        """What is on the branch and was not written yet. An answer that grows is gone on with."""
        growing = self._session.answering
        for message in self._session.branch:
            if message.id in self._written:
                continue
            if growing is not None and growing.message is not None and growing.message.id == message.id:
                self.go_on(growing)
            else:
                self._write(message)
            self._written.add(message.id)

    def show_sent(self, message: Message, *, waited: bool = False) -> None:
        """A prompt that was just put on disk, behind what its conversation began with."""
        if not self._console.repaints and not waited:
            # Whoever typed it just now has seen it, or heard it.
            self._written.add(message.id)
        self.show_new()
        waits = self.waits_for()
        if waits is not None and not self._console.repaints:
            self.note(waits)

    def write_again(self, message: Message) -> None:
        """A message as a whole, whether it was written before or not."""
        self._write(message)
        self._written.add(message.id)
        self._left_out.discard(message.id)

    def is_shown(self, message_id: str) -> bool:
        """Whether a message was put on the console since the conversation was opened."""
        return message_id in self._written and message_id not in self._left_out

    def mark_written(self, message_id: str) -> None:
        self._written.add(message_id)

    def tell_waiting(self) -> None:
        """A prompt waits; where there is an open end it is shown there."""
        if not self._console.repaints:
            self.note("Your message waits for the present answer.")

    def waiting(self) -> list[Fragments]:
        session = self._session
        prompts = session.waiting_prompts(session.conversation_id)
        shown = [self._console.formatter.remark("footer", f"waits  {one_line(one, 70)}")[0] for one in prompts]
        if len(prompts) > _WAITING_SHOWN:
            more = self._console.formatter.remark("footer", f"and {len(prompts) - _WAITING_SHOWN} more")
            return [*shown[:_WAITING_SHOWN], *more]
        return shown

    # The open end

    def tail(self) -> list[Fragments]:
        """What is painted again and again: the open end of the answer, or what it waits for."""
        if self._lines is not None:
            return self._tail
        waits = self.waits_for()
        return self._console.formatter.remark("footer", waits) if waits is not None else []

    def waits_for(self) -> str | None:
        return waits_for(self._session, self._model)

    def write_finished(self) -> None:
        """Put what is finished of the growing answer on the console, and read its open end."""
        if self._lines is None:
            return
        finished, self._tail = self._lines.take(self._console.tail_rows)
        if finished:
            self._console.put(finished)

    def _paint_soon(self) -> None:
        if not self._paint_is_due:
            self._paint_is_due = True
            self._later(_PAINT_EVERY_SECONDS, self._paint)

    def _paint(self) -> None:
        self._paint_is_due = False
        self.write_finished()
        self._console.refresh()

    def go_on(self, answering: PendingAnswer, *, written: bool = False) -> None:
        """Show an answer that grows, from its beginning; `written` is whether its text so far is on the console."""
        assert answering.message is not None
        speaker = self._speaker(answering.message)
        self._lines = AnswerLines(self._console.formatter, speaker)
        self._message_id = answering.message.id
        self.mark_written(answering.message.id)
        self._console.put(self._name_over(answering.message))
        if written:
            self._console.put(self._console.formatter.head("answer", speaker))
            self._lines.go_on_from(answering.so_far)
        else:
            for piece in answering.so_far:
                self._lines.add(piece)
        self._paint_soon()

    def grows(self, message_id: str) -> bool:
        return self._lines is not None and self._message_id == message_id

    def add(self, pieces: Iterable[TextDelta]) -> None:
        if self._lines is not None:
            for piece in pieces:
                self._lines.add(piece)
            self._paint_soon()

    def end(self) -> list[Fragments]:
        """The answer grows no more; what of it is not on the console."""
        rest = self._lines.close() if self._lines is not None else []
        self._lines = self._message_id = None
        self._tail = []
        return rest

    def leave(self, why: str) -> None:
        """Write what there is of a growing answer, before something else is shown."""
        if self._lines is not None:
            formatter = self._console.formatter
            self._console.put([*self.end(), *formatter.remark("footer", f"({why})"), *formatter.gap()])

    # One message

    def _write(self, message: Message) -> None:
        if message.role != "assistant":
            long = message.text.count("\n") >= _WHOLE_LINES and persona_line(message)
            text = f"{long}; /system shows it" if long else message.text
            self.put([*self._console.formatter.said(message.role, text), *self.end_of(message)])
            return
        said = answer_parts(message)
        lines = AnswerLines(self._console.formatter, self._speaker(message))
        if said.thinking:
            lines.add(TextDelta(said.thinking, channel="thought"))
        lines.add(TextDelta(said.answer))
        self.put([*self._name_over(message), *lines.close(), *self.end_of(message)])

    def _name_over(self, message: Message) -> list[Fragments]:
        in_group = char_of(message) is not None
        return self._console.formatter.name_over(self._speaker(message)) if in_group else []

    def end_of(self, message: Message) -> list[Fragments]:
        """What is said behind a message, and what separates it from the next."""
        formatter = self._console.formatter
        greets = message.id in greeting_ids(self._session.branch)
        told = footer(message, self._session.places, greets=greets)
        said = WRITTEN_ELSEWHERE if message.status == "streaming" else told
        return [*(formatter.remark("footer", f"({said})") if said else []), *formatter.gap()]

    def _speaker(self, message: Message) -> str:
        record = message.record
        if (char := char_of(message)) is not None:
            return label_of(char)
        if record is not None and record.persona:
            return one_line(record.persona, 40)
        if record is not None and record.model:
            return one_line(record.model, 40)
        return self.speaker
