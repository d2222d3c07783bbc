"""Answers on their way, a conversation each, and the prompts that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.answering import PendingAnswer
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, OneAnswer
from exlchat.llm.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.runtime.jobs import EngineJob, JobEnded, JobEvent, JobStep
    from exlchat.app.runtime.requests import JobQueue
    from exlchat.chat.model import Message


class UnderWay:
    """Belongs to one session and runs on its thread."""

    def __init__(self, jobs: JobQueue) -> None:
        self._jobs = jobs
        self._answering: dict[str, PendingAnswer] = {}
        self._queued: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._answering)

    def of(self, conversation_id: str | None) -> PendingAnswer | None:
        return self._answering.get(conversation_id or "")

    @property
    def written(self) -> Sequence[PendingAnswer]:
        """Those that have begun."""
        return [one for one in self._answering.values() if one.message is not None or one.several]

    def begin(
        self, job: EngineJob, *, prompt: Message | None, replaces: str | None, for_several: bool = False
    ) -> PendingAnswer:
        answering = PendingAnswer(job, prompt, replaces, for_several=for_several)
        self._answering[job.conversation_id] = answering
        self._jobs.submit(job)
        return answering

    def stop(self, answering: PendingAnswer | None) -> bool:
        """End an answer; whether there was one."""
        if answering is not None:
            self._jobs.stop(answering.job)
        return answering is not None

    def take(self, report: JobEvent) -> PendingAnswer | None:
        """Keep what a job has produced; the answer it belongs to, or `None` when it was forgotten."""
        answering = self._of_job(report.job)
        if answering is None:
            return None
        match report.event:
            case OneAnswer(index=index, event=AnswerClosed(kept=False)):
                del answering.several[index]
            case OneAnswer(index=index, event=event):
                _take(answering.several.setdefault(index, PendingAnswer(report.job, None, None)), event)
                answering.note_one_of_several(event)
            case event:
                _take(answering, event)
        return answering

    def end(self, report: JobEnded) -> PendingAnswer | None:
        """Forget a job; the answer it belonged to."""
        answering = self._of_job(report.job)
        if answering is not None:
            del self._answering[report.job.conversation_id]
        return answering

    def _of_job(self, job: EngineJob) -> PendingAnswer | None:
        answering = self._answering.get(job.conversation_id)
        return answering if answering is not None and answering.job is job else None

    # Prompts that wait

    def queue(self, conversation_id: str, text: str) -> None:
        self._queued.setdefault(conversation_id, []).append(text)

    def waiting(self, conversation_id: str | None) -> tuple[str, ...]:
        """Prompts of a conversation that wait, oldest first."""
        return tuple(self._queued.get(conversation_id or "", ()))

    def sent(self, conversation_id: str) -> None:
        self._queued[conversation_id].pop(0)

    def drop(self, conversation_id: str) -> None:
        """The conversation goes: end its answer and forget its prompts."""
        self._queued.pop(conversation_id, None)
        self.stop(self.of(conversation_id))


def _take(answering: PendingAnswer, event: JobStep) -> None:
    match event:
        case AnswerStarted() as started:
            answering.begin(started)
        case TextDelta() as delta:
            answering.add(delta)
        case AnswerClosed(message=message, kept=True):
            answering.message = message
