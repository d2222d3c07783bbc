"""An answer on its way, and what is known about one that has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exlchat.app.panels.figures import GrowingFigures
from exlchat.chat.speakers import char_of, is_group
from exlchat.chat.turn_events import AnswerStarted
from exlchat.llm.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.runtime.jobs import EngineJob, JobStep
    from exlchat.chat.model import Message


@dataclass(slots=True)
class PendingAnswer:
    """An answer that waits, is being written, or was just closed.

    Args:
        job: its job.
        prompt: the message it answers, when that was sent for it.
        replaces: id of the answer it takes the place of on the screen.
        message: the answer itself, once it has begun.
        thoughts, answer: the pieces of its text so far, without marks.
        fresh: what the newest text has brought of both.
        growing: how fast it comes.
        back_to: id of the message at which the branch ends when all has ended, where no answer was chosen.
        for_several: one job makes several answers, and this one stands for them all.
        several: each of them that has begun, by its number, from 0.
        then: who of a group speaks when it has ended by itself, one after the other.
    """

    job: EngineJob
    prompt: Message | None
    replaces: str | None
    message: Message | None = None
    thoughts: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)
    fresh: Sequence[TextDelta] = ()
    growing: GrowingFigures = field(default_factory=GrowingFigures)
    back_to: str | None = None
    for_several: bool = False
    several: dict[int, PendingAnswer] = field(default_factory=dict)
    then: Sequence[str] = ()

    @property
    def conversation_id(self) -> str:
        return self.job.conversation_id

    @property
    def so_far(self) -> tuple[TextDelta, ...]:
        both = TextDelta("".join(self.thoughts), channel="thought"), TextDelta("".join(self.answer))
        return tuple(piece for piece in both if piece.text)

    def begin(self, started: AnswerStarted) -> None:
        self.message = started.message
        self.growing.begin(started.prompt_tokens, time.monotonic())
        self.thoughts, self.answer = [], []
        self._take(started.begun)

    def note_one_of_several(self, event: JobStep) -> None:
        """All of them are counted together where this stands for them."""
        match event:
            case AnswerStarted(prompt_tokens=prompt_tokens) if not self.growing.began:
                self.growing.begin(prompt_tokens, time.monotonic())
            case TextDelta(token_ids=ids):
                self.growing.add(len(ids), time.monotonic())

    def add(self, delta: TextDelta) -> None:
        self.growing.add(len(delta.token_ids), time.monotonic())
        self._take((delta,) if delta.text and delta.channel != "mark" else ())

    def _take(self, pieces: Sequence[TextDelta]) -> None:
        self.fresh = pieces
        for piece in pieces:
            (self.thoughts if piece.channel == "thought" else self.answer).append(piece.text)


def was_cut(message: Message) -> bool:
    """Whether an answer stopped before its end: by the user, a crash, or a limit; an edited one can go on as well."""
    if message.role != "assistant":
        return False
    if message.edited_from is not None and message.record is None:
        return True
    reason = message.record.finish_reason if message.record else None
    return message.status == "partial" or reason in ("max_new_tokens", "context_full", "repeating")


def can_go_on(branch: Sequence[Message], message: Message) -> bool:
    """Whether an answer of this branch was cut and answers something, in a group anybody; a greeting does not."""
    said = [one for one in branch if one.role != "system"]
    at = next((place for place, one in enumerate(said) if one.id == message.id), 0)
    answers = at > 0 and said[at - 1].role == "user"
    in_group = char_of(message) is not None and any(is_group(one) for one in branch)
    return was_cut(message) and (answers or in_group)
