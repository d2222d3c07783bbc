"""The one thread that calls the engine: it loads the model, then takes jobs in order. It never touches a widget.

What happens is posted as plain frozen values from this thread; whoever receives them (the app, the line mode) brings
them to its own thread.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exlchat.ui.errors import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exlchat.chat.engine_port import EnginePort
    from exlchat.chat.turn import TurnEvent
    from exlchat.engine.events import LoadProgress, ModelInfo


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done with the engine for one conversation; `work` runs on the engine thread."""

    conversation_id: str
    work: Callable[[EnginePort], Iterator[TurnEvent]]


@dataclass(frozen=True, slots=True)
class Question:
    """Something to be asked of the engine between two jobs.

    Args:
        ask: runs on the engine thread.
        tell: takes what it gave; whoever receives the reports calls it, on its own thread.
    """

    ask: Callable[[EnginePort], Any]
    tell: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a question gave, or the one-line reason why it gave nothing."""

    question: Question
    answer: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded."""

    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There will be no model in this run; `line` says why and how to mend it."""

    line: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something a job has produced."""

    job: Job
    event: TurnEvent


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last word about a job; `error` is the one-line reason when it failed."""

    job: Job
    error: str | None


Report = Loading | Loaded | LoadFailed | JobEvent | JobEnded | Answered


# A decode step of a GPU takes 0.25 to 2 ms, and this thread must launch the next one in time. By default a thread that
# computes keeps the interpreter for 5 ms: beside one that draws 4 ms of every 33, steps of 1.3 ms came at 94 % of their
# rate on an H200, those of 0.25 ms at 91 %; with this all of them came.
_SWITCH_SECONDS = 1e-4


class _ClosingError(Exception):
    """Raised inside the loader's progress callback to end a load that nobody waits for any more."""


class EngineThread:
    """Owns the engine. All methods may be called from any thread; `post` is called on the engine thread."""

    def __init__(
        self,
        load: Callable[[Callable[[LoadProgress], None]], EnginePort],
        post: Callable[[Report], None],
    ) -> None:
        """`load` builds the engine and calls back with its progress; `post` receives everything that happens."""
        self._load = load
        self._post = post
        self._jobs: deque[Job | Question] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failure: str | None = None
        self._engine: EnginePort | None = None
        self._current: Job | Question | None = None
        self._stop_current = False
        # A daemon, so that a load stuck in C code cannot keep a program alive that the user has quit.
        self._thread = threading.Thread(target=self._run, name="exlchat-engine", daemon=True)

    @property
    def loaded(self) -> bool:
        """Whether there is a model, which may have something to bring to the disk at the end."""
        return self._engine is not None

    def start(self) -> None:
        """Begin loading the model."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Run `job` after those already waiting; `JobEnded` follows in any case, at once when there is no model."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def ask(self, question: Question) -> None:
        """Ask after the jobs that wait already; `Answered` follows in any case."""
        with self._changed:
            self._jobs.append(question)
            self._changed.notify()

    def stop(self, job: Job) -> None:
        """End `job`: within one token when it runs, at once when it only waits. Harmless when it has ended."""
        with self._changed:
            if job is self._current:
                self._stop_current = True
                if self._engine is not None:
                    self._engine.cancel()
            elif job in self._jobs:
                self._jobs.remove(job)
                self._post(JobEnded(job, None))

    def close(self, timeout: float) -> bool:
        """Stop the running job, drop the waiting ones, wait up to `timeout` seconds; whether the thread has ended."""
        with self._changed:
            self._closing = True
            self._jobs.clear()
            self._stop_current = True
            if self._engine is not None and self._current is not None:
                self._engine.cancel()
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._engine = self._load(self._report_loading)
        except _ClosingError:
            return
        except Exception as error:
            self._failure = error_line(error)
        if self._engine is not None:
            self._post(Loaded(self._engine.info))
        else:
            self._post(LoadFailed(self._failure or ""))
        while (job := self._next_job()) is not None:
            if isinstance(job, Question):
                self._answer(job)
            else:
                self._do(job)
        if self._engine is not None:
            self._engine.close()

    def _report_loading(self, progress: LoadProgress) -> None:
        if self._closing:
            raise _ClosingError
        self._post(Loading(progress))

    def _next_job(self) -> Job | Question | None:
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._closing or self._jobs)
            if self._closing:
                return None
            self._current = self._jobs.popleft()
            self._stop_current = False
            return self._current

    def _answer(self, question: Question) -> None:
        if self._engine is None:
            self._post(Answered(question, None, self._failure))
            return
        try:
            self._post(Answered(question, question.ask(self._engine), None))
        except Exception as failure:
            self._post(Answered(question, None, error_line(failure)))

    def _do(self, job: Job) -> None:
        if self._engine is None:
            self._post(JobEnded(job, self._failure))
            return
        error: str | None = None
        try:
            for event in job.work(self._engine):
                self._post(JobEvent(job, event))
                # `cancel` is forgotten by an engine that is not generating yet, so it is said again at each event.
                if self._stop_current:
                    self._engine.cancel()
        except Exception as failure:
            error = error_line(failure)
        self._post(JobEnded(job, error))
