"""What the engine's jobs report, brought to whatever shows the chat: what is told and when, but no drawing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.panels.figures import StatusFacts
from exlchat.app.runtime.jobs import Answered, JobEnded, JobEvent, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, OneAnswer, Summarising, TitleMade
from exlchat.llm.events import PrefillProgress, TextDelta

if TYPE_CHECKING:
    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.runtime.model_state import ModelReport, ModelState
    from exlchat.app.view import AnswerView, View

_SAVE_AGAIN_SECONDS = 3.0


def waits_for(session: ChatSession, model: ModelState) -> str | None:
    """What the answer of the open conversation waits for, in a line; `None` if it waits for nothing."""
    answering = session.answering
    if answering is None or answering.message is not None:
        return None
    if model.info is None and model.failure is None:
        return "Waiting for the model to be loaded; the message is saved."
    return None


class Presenter:
    """Belongs to one view and runs on its thread. `answers` is where that draws them."""

    def __init__(self, view: View, answers: AnswerView) -> None:
        self._view = view
        self._answers = answers
        self._notices_told: set[str] = set()

    def take(self, report: Report) -> None:
        """Show one report. A database that cannot be read just now is told; what it holds is shown when it can."""
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
        view, model = self._view, self._view.model
        told = model.learn(report)
        view.session.lacks = model.info.lacks if model.info is not None else {}
        match report:
            case Loading(progress=progress):
                self._status(progress.what or "loading", progress.done / progress.total if progress.total else None)
                return
            case Loaded(info=info):
                view.models.settled()
                view.facts = replace(
                    view.facts, model=model.name, activity="", fraction=None, context_max=info.max_seq_len
                )
                view.show_figures()
            case LoadFailed():
                view.models.settled()
                view.facts = StatusFacts(model=model.name, activity="no model")
            case LoadRefused():
                view.models.take_back()
            case _:
                if isinstance(report, WentBack):
                    view.models.take_back()
                view.facts = StatusFacts(model=model.name, activity="loading")
        self._answers.model_changed(report, told)

    # Answers

    def _job_event(self, report: JobEvent) -> None:
        view = self._view
        answering = view.session.job_event(report)
        if isinstance(report.event, TitleMade):
            view.refresh_around()
        if answering is None:
            return
        shown = answering.conversation_id == view.session.conversation_id
        match report.event:
            case Summarising() if shown:
                self._status("summarising the earlier conversation…")
            case AnswerStarted() as started:
                self._started(answering, started, shown=shown)
            case PrefillProgress(done=done, total=total) if shown:
                self._status("reading", done / total if total else None)
            case TextDelta() if shown and answering.message is not None and self._answers.grow(answering):
                # Another program may have moved the branch away from the answer.
                self._show_growing(answering)
            case AnswerClosed() as closed:
                self._closed(closed)
                if shown:
                    self._answers.close(closed)
            case OneAnswer(index=index, event=event):
                self._one_of_several(answering, index, event, shown=shown)

    def _started(self, answering: PendingAnswer, started: AnswerStarted, *, shown: bool) -> None:
        view = self._view
        notices = self._news(started)
        if shown:
            self._forget_figures(started.prompt_tokens)
        if shown and answering.message is not None:
            self._answers.begin(answering, notices, moved=started.context_notice is not None)
            self._status("reading")
            return
        for notice in notices:
            view.tell(notice)
        view.refresh_around()

    def _news(self, started: AnswerStarted) -> list[str]:
        """Notices once in a run, one about the model once for all; what it no longer sees each time that changes."""
        fresh = [notice for notice in dict.fromkeys(started.notices) if notice not in self._notices_told]
        about, model = started.model_notice, self._view.model.info
        if about is not None and model is not None and about not in self._notices_told:
            self._notices_told.add(about)
            if self._view.shelf.memory.is_news(Path(model.path), about):
                fresh.insert(0, about)
        self._notices_told.update(fresh)
        return [*fresh, started.context_notice] if started.context_notice else fresh

    def _show_growing(self, answering: PendingAnswer) -> None:
        if (facts := answering.growing.news(self._view.facts, time.monotonic())) is not None:
            self._view.facts = facts

    def _closed(self, closed: AnswerClosed) -> None:
        if closed.error is not None:
            self._view.tell(closed.error, warning=True)
            self._view.later(_SAVE_AGAIN_SECONDS, self._save_again)

    def _one_of_several(
        self, answering: PendingAnswer, index: int, event: AnswerStarted | TextDelta | AnswerClosed, *, shown: bool
    ) -> None:
        match event:
            case AnswerStarted() as started:
                for notice in self._news(started):
                    self._view.tell(notice)
            case TextDelta() if shown:
                self._show_growing(answering)
            case AnswerClosed() as closed:
                self._closed(closed)
        if shown:
            self._answers.one_of_several(answering.several.get(index), index, event)

    def _job_ended(self, report: JobEnded) -> None:
        view, session = self._view, self._view.session
        answering = session.job_ended(report)
        if answering is None:
            return
        if report.error is not None:
            self._failed(answering, report.error)
        prompt = session.send_next_queued(answering.conversation_id)
        seconds = 0.0
        if prompt is not None:
            view.unsent.keep(answering.conversation_id)
        elif not session.go_round(answering):
            began = answering.growing.began
            seconds = time.monotonic() - began if began else 0.0
            if report.error is None:
                session.have_titled(answering.conversation_id)
        if answering.conversation_id == session.conversation_id:
            self._status(view.model.activity)
        self._answers.ended(answering, failed=report.error is not None, prompt=prompt, seconds=seconds)
        view.refresh_around()

    def _failed(self, answering: PendingAnswer, line: str) -> None:
        """Say why. A prompt that the loaded model could not take goes back to where messages are typed."""
        view = self._view
        if answering.for_several or answering.conversation_id != view.session.conversation_id:
            view.tell(line, warning=True)
            return
        begun = answering.message is not None or view.model.failure is not None
        if not begun and self._answers.can_take_back and view.session.take_back(answering):
            assert answering.prompt is not None
            self._answers.take_back(answering.prompt.text)
        self._answers.failed(line)

    def _save_again(self) -> None:
        unkept = self._view.session.unkept
        if not unkept:
            return
        try:
            unkept.save()
        except StoreError:
            self._view.later(_SAVE_AGAIN_SECONDS, self._save_again)
        else:
            self._view.tell("The answer is on disk now")

    def _forget_figures(self, prompt_tokens: int) -> None:
        """Those of the answer before are not those of the one that begins."""
        self._view.facts = replace(
            self._view.facts, context_used=prompt_tokens, rate=None, cached=None, new=None, first_token=None
        )

    def _status(self, activity: str, fraction: float | None = None) -> None:
        self._view.facts = replace(self._view.facts, activity=activity, fraction=fraction)
