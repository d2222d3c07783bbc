"""What the engine thread reports, brought to the paper."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.panels.figures import GrowingFigures, StatusFacts
from exlchat.app.runtime.jobs import Answered, JobEnded, JobEvent, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.chat.several_answers import OneAnswer
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.titling import TitleMade
from exlchat.chat.turn import AnswerClosed, AnswerStarted, Summarising
from exlchat.llm.events import PrefillProgress, TextDelta

if TYPE_CHECKING:
    from exlchat.app.chat.answering import Answering
    from exlchat.app.chat.comparison import Comparison
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.runtime.model_state import ModelReport
    from exlchat.ui.line.view import LineView

_SAVE_AGAIN_SECONDS = 3.0


class Answers:
    """Belongs to one chat and runs on its thread."""

    def __init__(self, view: LineView) -> None:
        self._view = view
        self._figures = GrowingFigures()
        self._notices_told: set[str] = set()
        self.comparing = Comparing(view, self)

    # Reports

    def take(self, report: Report) -> None:
        """Show one report. A database that cannot be read just now is told; what it holds is shown when it can."""
        if self._view.leaving:
            match report:
                case JobEvent(event=AnswerClosed(error=str() as error)):
                    self._view.not_kept = error
                case JobEvent(event=OneAnswer(event=AnswerClosed(error=str() as error))):
                    self._view.not_kept = error
            return
        try:
            match report:
                case JobEvent():
                    self._job_event(report)
                case JobEnded():
                    self._job_ended(report)
                case Answered():
                    self._answered(report)
                case _:
                    self._model_report(report)
        except StoreError as error:
            self._view.tell(str(error), warning=True)

    def _answered(self, report: Answered) -> None:
        self._view.session.questions.answered(report.question)
        if report.error is None:
            report.question.tell(report.answer)
        elif report.question.fail is not None:
            report.question.fail(report.error)
        else:
            self._view.tell(report.error, warning=True)

    def _model_report(self, report: ModelReport) -> None:
        view = self._view
        told = view.model.learn(report)
        match report:
            case Loading(progress=progress):
                fraction = progress.done / progress.total if progress.total else None
                view.facts = replace(view.facts, activity=progress.what or "loading", fraction=fraction)
            case Loaded():
                view.models.settled()
                view.facts = replace(view.facts, model=view.model.name)
                self._view.show_figures()
                if not view.paper.repaints:
                    told = told or f"{view.model.name} is loaded."
            case LoadFailed():
                view.models.settled()
                view.facts = StatusFacts(model=view.model.name, activity="no model")
            case LoadRefused():
                view.models.take_back()
            case _:
                if isinstance(report, WentBack):
                    view.models.take_back()
                view.facts = StatusFacts(model=view.model.name, activity="loading")
                if not view.paper.repaints:
                    told = told or f"Loading {view.model.name}."
        if told is not None:
            view.note(told)
        view.paper.refresh()

    # Answers

    def _job_event(self, report: JobEvent) -> None:
        view = self._view
        answering = view.session.job_event(report)
        if isinstance(report.event, TitleMade) or answering is None:
            return
        shown = answering.conversation_id == view.session.conversation_id
        match report.event:
            case OneAnswer(index=index, event=event) if shown and self.comparing.active:
                self.comparing.take(answering.several.get(index), index, event)
            case OneAnswer(event=AnswerClosed() as closed):
                self.closed(closed, shown=False)
            case Summarising() if shown:
                self._status("summarising the earlier conversation…")
            case AnswerStarted() as started:
                self.started(answering, started, shown=shown)
            case PrefillProgress(done=done, total=total) if shown:
                self._status("reading", done / total if total else None)
            case TextDelta(token_ids=ids):
                self.text(answering, len(ids), shown=shown)
            case AnswerClosed() as closed:
                self.closed(closed, shown=shown)

    def started(self, answering: Answering, started: AnswerStarted, *, shown: bool) -> None:
        """An answer is on disk; on the paper too, where its conversation is open."""
        view = self._view
        self._figures.begin(started.prompt_tokens)
        for notice in started.notices:
            if notice not in self._notices_told:
                self._notices_told.add(notice)
                view.note(notice)
        if started.context_notice:
            view.note(started.context_notice)
        if not shown or answering.message is None or view.scrollback.grows(answering.message.id):
            return
        # A cut answer that is gone on with, or one in which another token was taken.
        view.scrollback.go_on(answering, written=bool(answering.so_far) and self._is_written(answering))
        self._status("reading")

    def _is_written(self, answering: Answering) -> bool:
        """Whether what an answer begins with is on the paper, as all of the one that it takes the place of."""
        old, begun = answering.replaces, answering.message
        return begun is not None and old is not None and self._view.session.store.message(old).text == begun.text

    def text(self, answering: Answering, tokens: int, *, shown: bool) -> None:
        """An answer has grown."""
        now = time.monotonic()
        self._figures.add(tokens, now)
        if not shown or answering.message is None or not self._view.scrollback.grows(answering.message.id):
            return
        self._view.scrollback.add(answering.fresh)
        if (facts := self._figures.news(self._view.facts, now)) is not None:
            self._view.facts = facts

    def closed(self, closed: AnswerClosed, *, shown: bool) -> None:
        """An answer has ended."""
        view = self._view
        if closed.error is not None:
            view.tell(closed.error, warning=True)
            view.later(_SAVE_AGAIN_SECONDS, self._save_again)
        if not shown:
            return
        grew, rest = view.scrollback.grows(closed.message.id), view.scrollback.end()
        rest = rest if grew else []
        if not closed.kept:
            view.paper.put(rest)
            view.note("Stopped before there was any text.")
            return
        view.scrollback.mark_written(closed.message.id)
        view.paper.put([*rest, *view.scrollback.end_of(closed.message)])
        self._view.show_figures()

    def _job_ended(self, report: JobEnded) -> None:
        view, session = self._view, self._view.session
        answering = session.job_ended(report)
        if answering is None:
            return
        if report.error is not None:
            self._failed(answering, report.error)
        prompt = session.send_next_queued(answering.conversation_id)
        here = answering.conversation_id == session.conversation_id
        if here and (prompt is not None or report.error is not None):
            self.comparing.forget()
        elif here and answering.for_several:
            self.comparing.ended()
        if prompt is not None:
            view.unsent.keep(answering.conversation_id)
        elif report.error is None:
            session.title_when_idle(answering.conversation_id)
        if not here and report.error is None and prompt is None:
            view.tell("An answer in another conversation has ended; /open shows them")
        if here:
            self._status(view.model.activity)
            if prompt is not None:
                view.scrollback.show_sent(prompt, waited=True)
        view.paper.refresh()

    def _failed(self, answering: Answering, line: str) -> None:
        """Say why. A prompt that the loaded model could not take goes back to where messages are typed."""
        view = self._view
        if answering.conversation_id != view.session.conversation_id:
            view.tell(line, warning=True)
            return
        free = view.paper.repaints and not view.editing.active and not view.paper.typed().strip()
        if answering.message is None and view.model.failure is None and free and view.session.take_back(answering):
            assert answering.prompt is not None
            view.paper.set_text(answering.prompt.text)
        view.tell(line, warning=True)

    def _save_again(self) -> None:
        """Put answers on disk that could not be written when they ended, as soon as they can be."""
        unkept = self._view.session.unkept
        if not unkept or self._view.leaving:
            return
        try:
            unkept.save()
        except StoreError:
            self._view.later(_SAVE_AGAIN_SECONDS, self._save_again)
        else:
            self._view.tell("The answer is on disk now")

    def _status(self, activity: str, fraction: float | None = None) -> None:
        self._view.facts = replace(self._view.facts, activity=activity, fraction=fraction)
        self._view.paper.refresh()


class Comparing:
    """Several answers to one message. They grow side by side and are written one after the other, by their numbers."""

    def __init__(self, view: LineView, answers: Answers) -> None:
        self._view = view
        self._answers = answers
        self._comparison: Comparison | None = None
        self._begun: dict[int, tuple[Answering, AnswerStarted]] = {}
        self._closed: dict[int, AnswerClosed] = {}
        self._written = 0
        """So many of them are on the paper."""

    def begin(self, many: str) -> None:
        """Have that many answers, two without a number; the last answer is the first of them.

        Raises:
            NotPossibleError, StoreError: as of `Comparison`.
        """
        if many and not many.isdecimal():
            raise NotPossibleError(f"{many!r} is no number of answers, such as 3")
        # No start needs it.
        from exlchat.app.chat.comparison import Comparison

        view = self._view
        given = view.session.last_answer
        self._comparison = comparison = Comparison(view.session, int(many or 2))
        self._begun, self._closed, self._written = {}, {}, 0
        view.note(f"{comparison.many} answers to the last message, written one after the other; ctrl+c stops")
        if comparison.given is not None and given is not None:
            view.note(f"Alternative {self._number(given.id)}:")
            view.scrollback.write_again(given)

    @property
    def active(self) -> bool:
        """Whether answers are written."""
        return self._comparison is not None

    def take(self, one: Answering | None, index: int, event: AnswerStarted | TextDelta | AnswerClosed) -> None:
        """One of them, counted from 0, has begun, grown or ended: the first that has not ended is seen to grow."""
        match event:
            case AnswerStarted() if one is not None:
                self._begun[index] = one, event
                if index == self._written:
                    self._write(index)
            case TextDelta(token_ids=ids) if one is not None and index == self._written:
                self._answers.text(one, len(ids), shown=True)
            case AnswerClosed():
                self._closed[index] = event
                while (closed := self._closed.pop(self._written, None)) is not None:
                    self._answers.closed(closed, shown=True)
                    self._written += 1
                    if self._written in self._begun:
                        self._write(self._written)

    def ended(self) -> None:
        """The answers on their way in the open conversation have ended: say how to choose."""
        comparison, self._comparison = self._comparison, None
        last = self._view.session.last_answer
        if last is None:
            return
        if comparison is None:
            # They grew while something else was shown.
            self._view.scrollback.write_again(last)
        self._view.note(f"Alternative {self._number(last.id)} is shown now; /alternative N keeps another one")

    def forget(self) -> None:
        """Something else goes on in the conversation, or another one is open: they are written no more."""
        self._comparison = None

    def _write(self, index: int) -> None:
        one, started = self._begun[index]
        self._view.note(f"Alternative {self._number(started.message.id)}:")
        self._answers.started(one, started, shown=True)

    def _number(self, ident: str) -> int:
        """Which alternative an answer is."""
        ids = [one.id for one in self._view.session.store.alternatives(ident)]
        return ids.index(ident) + 1 if ident in ids else 1
