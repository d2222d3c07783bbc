"""An answer on its way, and what is known about one that has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exlchat.chat.prompt.answer_parts import marks_of
from exlchat.chat.prompt.thinking import Piece, ThinkingSplitter

if TYPE_CHECKING:
    from exlchat.app.runtime.jobs import Job
    from exlchat.chat.model import Message


@dataclass(slots=True)
class Answering:
    """An answer that waits, is being written, or was just closed.

    Args:
        job: its job on the engine thread.
        prompt: the message it answers, when that was sent for it.
        replaces: id of the answer it takes the place of on the screen.
        message: the answer itself, once it has begun.
        thoughts, answer: the pieces of its text so far, without marks.
        fresh: what the newest text has brought of both.
        for_several: one job makes several answers, and this one stands for them all.
        several: each of them that has begun, by its number, from 0.
    """

    job: Job
    prompt: Message | None
    replaces: str | None
    message: Message | None = None
    thoughts: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    fresh: list[Piece] = field(default_factory=list)
    for_several: bool = False
    several: dict[int, Answering] = field(default_factory=dict)
    _splitter: ThinkingSplitter | None = None

    @property
    def conversation_id(self) -> str:
        """Where the answer belongs."""
        return self.job.conversation_id

    @property
    def so_far(self) -> tuple[Piece, ...]:
        """All of its text as it is now, without marks."""
        both = Piece("thinking", "".join(self.thoughts)), Piece("answer", "".join(self.answer))
        return tuple(piece for piece in both if piece.text)

    def begin(self, message: Message) -> None:
        """It is on disk, with the text of a cut answer that it goes on from."""
        marks = marks_of(message)
        self.message = message
        self.thoughts, self.answer = [], []
        self._splitter = None if marks is None else ThinkingSplitter(marks)
        self.add(message.text)

    def add(self, text: str) -> None:
        """More of it has come."""
        self.fresh = [Piece("answer", text)] if self._splitter is None else self._splitter.feed(text)
        for piece in self.fresh:
            (self.thoughts if piece.kind == "thinking" else self.answer).append(piece.text)


def was_cut(message: Message) -> bool:
    """Whether an answer stopped before its end: by the user, a crash, or a limit; an edited one can go on as well."""
    if message.role != "assistant":
        return False
    if message.edited_from is not None and message.record is None:
        return True
    reason = message.record.finish_reason if message.record else None
    return message.status == "partial" or reason in ("max_new_tokens", "context_full", "repeating")
