"""The messages of the open conversation, each written once, as it comes or when the conversation is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.message_words import WRITTEN_ELSEWHERE, footer, seen_line, unanswered_line
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.context_window import newest_record
from exlchat.llm.thoughts import Piece
from exlchat.ui.line.answer import AnswerLines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.chat.model import Message
    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.paper import Fragments

_SHOWN = 20
"""How many messages of a conversation are shown when it is opened."""
_WAITING_SHOWN = 3


class Transcript:
    """Belongs to one chat and runs on its thread."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._written: set[str] = set()
        self._left_out: set[str] = set()
        """Messages that count as written because they are too far above the end."""
        self._seen_from: str | None = None

    def show_conversation(self, *, titled: bool) -> None:
        """The last messages of the conversation that was opened, with its title where it is one to come back to."""
        chat, branch = self._chat, self._chat.session.branch
        self._left_out = {message.id for message in branch[:-_SHOWN]}
        self._written = set(self._left_out)
        record = newest_record(branch)
        self._seen_from = record.seen_from if record is not None else None
        if chat.session.conversation is None or not branch:
            return
        ink = chat.paper.ink
        lines = ink.remark("note", f"— {one_line(chat.session.conversation.title, 60)} —") if titled else []
        if len(branch) > _SHOWN:
            lines += ink.remark("footer", f"— {len(branch) - _SHOWN} earlier messages —")
        if lines:
            chat.put([*lines, *ink.gap()])
        if record is not None and self._seen_from in self._written:
            chat.put(ink.remark("footer", seen_line(record, any_pinned=any(one.pinned for one in branch))))
        self.show_new()
        if branch[-1].role == "user" and chat.session.answering is None:
            chat.note(unanswered_line("/retry"))

    def show_new(self) -> None:
        """What is on the branch and was not written yet. An answer that grows is gone on with."""
        growing = self._chat.session.answering
        for message in self._chat.session.branch:
            if message.id in self._written:
                continue
            if growing is not None and growing.message is not None and growing.message.id == message.id:
                self._chat.answers.go_on(growing)
            else:
                self._write(message)
            self._written.add(message.id)

    def show_sent(self, message: Message, *, waited: bool = False) -> None:
        """A prompt that was just put on disk, behind what its conversation began with."""
        if not self._chat.paper.repaints and not waited:
            # Whoever typed it just now has seen it, or heard it.
            self._written.add(message.id)
        self.show_new()
        waits = self._chat.answers.waits_for()
        if waits is not None and not self._chat.paper.repaints:
            self._chat.note(waits)

    def write_again(self, message: Message) -> None:
        """A message as a whole, whether it was written before or not."""
        self._write(message)
        self._written.add(message.id)
        self._left_out.discard(message.id)

    def is_written(self, message_id: str) -> bool:
        """Whether a message was written since the conversation was opened."""
        return message_id in self._written

    def is_shown(self, message_id: str) -> bool:
        """Whether a message was put on the paper since the conversation was opened."""
        return message_id in self._written and message_id not in self._left_out

    def mark_written(self, message_id: str) -> None:
        """A message is written as it comes."""
        self._written.add(message_id)

    def tell_waiting(self) -> None:
        """A prompt waits; where there is an open end it is shown there."""
        if not self._chat.paper.repaints:
            self._chat.note("Your message waits for the present answer.")

    def waiting(self) -> list[Fragments]:
        """The prompts that wait, for the open end."""
        session = self._chat.session
        prompts = session.waiting_prompts(session.conversation_id)
        shown = [self._chat.paper.ink.remark("footer", f"waits  {one_line(one, 70)}")[0] for one in prompts]
        if len(prompts) > _WAITING_SHOWN:
            more = self._chat.paper.ink.remark("footer", f"and {len(prompts) - _WAITING_SHOWN} more")
            return [*shown[:_WAITING_SHOWN], *more]
        return shown

    def _write(self, message: Message) -> None:
        chat = self._chat
        if message.role != "assistant":
            chat.put([*chat.paper.ink.said(message.role, message.text), *self.end_of(message)])
            return
        said = answer_parts(message)
        lines = AnswerLines(chat.paper.ink, self._speaker(message))
        if said.thinking:
            lines.add(Piece("thought", said.thinking))
        lines.add(Piece("answer", said.answer))
        chat.put([*lines.close(), *self.end_of(message)])

    def end_of(self, message: Message) -> list[Fragments]:
        """What is said behind a message, and what separates it from the next."""
        ink = self._chat.paper.ink
        said = WRITTEN_ELSEWHERE if message.status == "streaming" else footer(message, self._chat.session.places)
        return [*(ink.remark("footer", f"({said})") if said else []), *ink.gap()]

    def _speaker(self, message: Message) -> str:
        record = message.record
        if record is not None and record.persona:
            return one_line(record.persona, 40)
        if record is not None and record.model:
            return one_line(record.model, 40)
        return self._chat.speaker
