"""A view's own door to the engine's jobs, where several views share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.runtime.jobs import Answered, JobEnded, JobEvent

if TYPE_CHECKING:
    from exlchat.app.runtime.jobs import EngineJob, Question, Report
    from exlchat.app.runtime.requests import JobQueue


class OwnJobs:
    """A `JobQueue` that knows what went through it. `owns` is asked on the threads of jobs, the rest on the view's."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._asked: set[EngineJob | Question] = set()

    def submit(self, job: EngineJob) -> None:
        # Before it can be reported of.
        self._asked.add(job)
        self._queue.submit(job)

    def ask(self, question: Question) -> None:
        self._asked.add(question)
        self._queue.ask(question)

    def stop(self, job: EngineJob) -> None:
        self._queue.stop(job)

    def owns(self, report: Report) -> bool:
        """Whether a report is of something that was asked here. Those of models are nobody's."""
        match report:
            case JobEvent(job=asked) | JobEnded(job=asked) | Answered(question=asked):
                mine = asked in self._asked
                if not isinstance(report, JobEvent):
                    self._asked.discard(asked)
                return mine
        return False
