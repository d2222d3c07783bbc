"""The threads that call the engine: one loads models, and each job runs in one of its own. None touches a widget.

Which of several answers goes first is the engine's to say, by the rank of its request; here stands only what waits for
what: a model for the answers of the one before it, a question for what it asks about. What happens is posted as plain
frozen values from these threads; whoever receives them (the app, the line mode) brings them to its own thread.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from exlchat.app.runtime.errors import told_error
from exlchat.app.runtime.jobs import (
    Answered,
    EngineJob,
    JobEnded,
    JobEvent,
    Load,
    LoadBegun,
    Loaded,
    LoadFailed,
    Loading,
    LoadRefused,
    Loan,
    Question,
    WentBack,
)
from exlchat.llm.port import HoldsMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.runtime.jobs import Loader, Report
    from exlchat.llm.info import LoadProgress
    from exlchat.llm.port import Engine

    _Asked = EngineJob | Question

# A decode step of a GPU takes 0.25 to 2 ms, and whoever reads an answer must launch the next one in time. By default a
# thread that computes keeps the interpreter for 5 ms: beside one that draws 4 ms of every 33, steps of 1.3 ms came at
# 94 % of their rate on an H200, those of 0.25 ms at 91 %; with this all of them came.
_SWITCH_SECONDS = 1e-4


class _GivenUpError(Exception):
    """Raised inside the loader's progress callback to end a load that nobody waits for any more."""


class EngineJobs:
    """Owns the engine. All methods may be called from any thread; `post` is called on the threads of the jobs."""

    def __init__(self, load: Loader, post: Callable[[Report], None], *, name: str = "") -> None:
        """`load` builds the first engine, of the model `name`; `post` receives everything that happens."""
        self._post = post
        self._waiting: deque[_Asked | Loan | Load] = deque()
        self._running: set[_Asked | Loan] = set()
        self._changed = threading.Condition()
        self._closing = False
        self._failure: str | None = None
        self._engine: Engine | None = None
        self._loading: Load | None = Load(name, load)
        self._good: Load | None = None
        self._given_up = False
        # A daemon, so that a load stuck in C code cannot keep a program alive that the user has quit.
        self._thread = threading.Thread(target=self._run, name="exlchat-engine", daemon=True)

    @property
    def engine(self) -> Engine | None:
        """The model that is there. It may be unloaded for another at any moment, but not while it is lent."""
        return self._engine

    def count(self, text: str) -> int | None:
        """Tokens of a text, counted on the calling thread; `None` while there is no model."""
        with self._changed:
            engine = self._engine
        if engine is None:
            return None
        try:
            return len(engine.encode(text))
        except Exception:
            # It has just been unloaded for another.
            return None

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def submit(self, job: EngineJob) -> None:
        """Run `job` beside the others; `JobEnded` follows in any case, at once when there is no model."""
        with self._changed:
            if not job.idle and self._engine is not None and not self._engine.capabilities.ranks:
                self._end_idle_jobs()
            self._waiting.append(job)
            self._changed.notify_all()

    def ask(self, question: Question) -> None:
        """Ask, beside all that runs but what it is about; `Answered` follows in any case."""
        with self._changed:
            self._waiting.append(question)
            self._changed.notify_all()

    def lend(self, loan: Loan) -> None:
        """Grant it as soon as a model is there; `give_back` has to follow, before it is granted or behind that."""
        with self._changed:
            self._waiting.append(loan)
            self._changed.notify_all()

    def give_back(self, loan: Loan) -> None:
        with self._changed:
            self._running.discard(loan)
            if loan in self._waiting:
                self._waiting.remove(loan)
            self._changed.notify_all()

    def load(self, load: Load) -> bool:
        """Change the model when all that was asked before has ended; what is asked from now on goes to the new one.

        A change that has not come to its end is given up for this one. `Loaded`, `LoadRefused`, `WentBack` or
        `LoadFailed` follows for the last of them.

        Returns:
            Whether an answer has to end before it.
        """
        with self._changed:
            self._end_idle_jobs()
            waiting = next((index for index, one in enumerate(self._waiting) if isinstance(one, Load)), None)
            if waiting is not None:
                self._waiting[waiting] = load
            elif self._loading is not None:
                self._given_up = True
                self._waiting.appendleft(load)
            else:
                self._waiting.append(load)
            self._changed.notify_all()
            return any(isinstance(one, Loan) or (isinstance(one, EngineJob) and not one.idle) for one in self._running)

    def stop(self, job: EngineJob) -> None:
        """End `job`: within one token when it runs, at once when it only waits. Harmless when it has ended."""
        with self._changed:
            self._end(job)

    def close(self, timeout: float) -> bool:
        """Stop the running jobs, drop the waiting ones, wait up to `timeout` seconds; whether all have ended."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            for asked in self._running:
                if not isinstance(asked, Loan):
                    asked.cancellation.cancel()
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _end(self, job: EngineJob) -> None:
        if job in self._running:
            job.cancellation.cancel()
        elif job in self._waiting:
            self._waiting.remove(job)
            self._post(JobEnded(job, None))

    def _end_idle_jobs(self) -> None:
        """Something that somebody waits for has come, and the engine would not let it go first by itself."""
        for job in (*self._running, *self._waiting):
            if isinstance(job, EngineJob) and job.idle:
                self._end(job)

    def _run(self) -> None:
        load = self._loading
        while load is not None:
            # What takes its place is the next one, and none when the thread is to end.
            with contextlib.suppress(_GivenUpError):
                self._change_to(load)
            load = self._next_load()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
        if self._engine is not None:
            self._engine.close()

    def _change_to(self, load: Load) -> None:
        first = self._good is None and self._failure is None
        if first:
            # What is given up for another is still what to go back to.
            self._good = load
        line = self._problem(load)
        if self._given_up or self._closing:
            return
        if line is None:
            self._unload()
            if not first:
                self._post(LoadBegun(load.name))
            line = self._bring(load)
        if line is None:
            self._good = load
        elif self._engine is not None:
            self._post(LoadRefused(line))
        else:
            self._go_back(load, line)

    def _go_back(self, failed: Load, line: str) -> None:
        before, self._good = self._good, None
        if before is not None and before is not failed:
            self._post(WentBack(line, before.name))
            self._good = before
            second = self._bring(before)
            if second is None:
                return
            self._good = None
            line = f"{line}; and the model before it could not be loaded again: {second}"
        self._failure = line
        self._post(LoadFailed(line))

    def _problem(self, load: Load) -> str | None:
        try:
            load.check()
        except Exception as error:
            return told_error(error)
        return None

    def _bring(self, load: Load) -> str | None:
        """Load it while there is no other; why it could not be."""
        self._failure = None
        try:
            self._engine = load.load(self._report_loading)
        except _GivenUpError:
            raise
        except Exception as error:
            return told_error(error)
        self._post(Loaded(self._engine.info))
        return None

    def _unload(self) -> None:
        with self._changed:
            engine, self._engine = self._engine, None
        if engine is not None:
            # A card in disorder says so when the next model is loaded.
            with contextlib.suppress(Exception):
                if isinstance(engine, HoldsMemory):
                    engine.unload()
                else:
                    engine.close()

    def _report_loading(self, progress: LoadProgress) -> None:
        if self._closing or self._given_up:
            raise _GivenUpError
        self._post(Loading(progress))

    def _next_load(self) -> Load | None:
        """Has begin whatever may, until another model is to be loaded; `None` when the thread is to end."""
        with self._changed:
            self._loading = None
            while not self._closing:
                self._begin_waiting()
                first = self._waiting[0] if self._waiting else None
                if isinstance(first, Load) and not self._running:
                    self._waiting.popleft()
                    self._loading, self._given_up = first, False
                    return first
                self._changed.wait()
            return None

    def _begin_waiting(self) -> None:
        for asked in list(self._waiting):
            if isinstance(asked, Load):
                # What comes behind it is asked of that model.
                return
            if isinstance(asked, Question) and self._is_behind(asked):
                continue
            self._waiting.remove(asked)
            self._running.add(asked)
            if isinstance(asked, Loan):
                asked.granted(self._engine, self._failure)
            else:
                # A daemon, as this one.
                threading.Thread(target=self._carry_out, args=(asked,), name="exlchat-job", daemon=True).start()

    def _is_behind(self, question: Question) -> bool:
        """Whether what it is about is being answered, or has been asked to be before it."""
        before = (*self._running, *itertools.takewhile(lambda one: one is not question, self._waiting))
        jobs = [one for one in before if isinstance(one, EngineJob) and not one.idle]
        return any(one.conversation_id == question.conversation_id for one in jobs)

    def _carry_out(self, asked: _Asked) -> None:
        try:
            if isinstance(asked, Question):
                self._answer(asked)
            else:
                self._do(asked)
        finally:
            with self._changed:
                self._running.discard(asked)
                self._changed.notify_all()

    def _answer(self, question: Question) -> None:
        if self._engine is None:
            self._post(Answered(question, None, self._failure))
            return
        try:
            self._post(Answered(question, question.ask(self._engine), None))
        except Exception as failure:
            self._post(Answered(question, None, told_error(failure, logged=question.kept)))

    def _do(self, job: EngineJob) -> None:
        if self._engine is None:
            self._post(JobEnded(job, self._failure))
            return
        error: str | None = None
        try:
            for event in job.work(self._engine, job.cancellation):
                self._post(JobEvent(job, event))
        except Exception as failure:
            error = told_error(failure, logged=job.kept)
        self._post(JobEnded(job, error))
