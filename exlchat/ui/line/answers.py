"""What the engine thread reports, brought to the paper."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.app.panels.figures import GrowingFigures, StatusFacts, facts_of
from exlchat.app.runtime.jobs import Answered, JobEnded, JobEvent, Loaded, LoadFailed, Loading, LoadRefused, WentBack
from exlchat.chat.several_answers import OneAnswer
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.titling import TitleMade
from exlchat.chat.turn import AnswerClosed, AnswerStarted, Summarising
from exlchat.llm.events import PrefillProgress, TextDelta
from exlchat.ui.line.answer import AnswerLines

if TYPE_CHECKING:
    from exlchat.app.chat.answering import Answering
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.runtime.model_state import ModelReport
    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.paper import Fragments

_PAINT_EVERY_SECONDS = 1 / 30
_SAVE_AGAIN_SECONDS = 3.0


class Answers:
    """Belongs to one chat and runs on its thread."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._figures = GrowingFigures()
        self._notices_told: set[str] = set()
        self._lines: AnswerLines | None = None
        """Of the answer that grows in the open conversation."""
        self._message_id: str | None = None
        self._tail: list[Fragments] = []
        self._paint_is_due = False
        self.place: tuple[int, int] | None = None
        """Which of how many alternatives the newest answer is."""

    # The open end

    def tail(self) -> list[Fragments]:
        """What is painted again and again: the open end of the answer, or what it waits for."""
        if self._lines is not None:
            return self._tail
        waits = self.waits_for()
        return self._chat.paper.ink.remark("footer", waits) if waits is not None else []

    def waits_for(self) -> str | None:
        """What the answer of the open conversation waits for, in a line."""
        session, model = self._chat.session, self._chat.model
        answering = session.answering
        if answering is None or answering.message is not None:
            return None
        if model.info is None and model.failure is None:
            return "Waiting for the model to be loaded; the message is saved."
        writing = session.being_written
        if writing is not None and writing is not answering:
            return "Waiting for the answer in another conversation to end; the message is saved."
        return None

    def write_finished(self) -> None:
        """Put what is finished of the growing answer on the paper, and read its open end."""
        if self._lines is None:
            return
        finished, self._tail = self._lines.take(self._chat.paper.tail_rows)
        if finished:
            self._chat.paper.put(finished)

    def _paint_soon(self) -> None:
        if not self._paint_is_due:
            self._paint_is_due = True
            self._chat.later(_PAINT_EVERY_SECONDS, self._paint)

    def _paint(self) -> None:
        self._paint_is_due = False
        self.write_finished()
        self._chat.paper.refresh()

    def go_on(self, answering: Answering, *, written: bool = False) -> None:
        """Show an answer that grows, from its beginning; `written` is whether its text so far is on the paper."""
        assert answering.message is not None
        self._lines = AnswerLines(self._chat.paper.ink, self._chat.speaker)
        self._message_id = answering.message.id
        self._chat.transcript.mark_written(answering.message.id)
        if written:
            self._chat.paper.put(self._chat.paper.ink.head("answer", self._chat.speaker))
            self._lines.go_on_from(answering.so_far)
        else:
            for piece in answering.so_far:
                self._lines.add(piece)
        self._paint_soon()

    def leave(self) -> None:
        """Write what there is of a growing answer, before something else is shown."""
        if self._lines is None:
            return
        said = "the answer is kept as far as it comes" if self._chat.leaving else "the answer goes on"
        rest = self._lines.close()
        self._forget()
        ink = self._chat.paper.ink
        self._chat.paper.put([*rest, *ink.remark("footer", f"({said})"), *ink.gap()])

    def _forget(self) -> None:
        self._lines = self._message_id = None
        self._tail = []

    # Reports

    def take(self, report: Report) -> None:
        """Show one report. A database that cannot be read just now is told; what it holds is shown when it can."""
        if self._chat.leaving:
            match report:
                case JobEvent(event=AnswerClosed(error=str() as error)):
                    self._chat.not_kept = error
                case JobEvent(event=OneAnswer(event=AnswerClosed(error=str() as error))):
                    self._chat.not_kept = error
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
            self._chat.tell(str(error), warning=True)

    def _answered(self, report: Answered) -> None:
        self._chat.session.questions.answered(report.question)
        if report.error is None:
            report.question.tell(report.answer)
        elif report.question.fail is not None:
            report.question.fail(report.error)
        else:
            self._chat.tell(report.error, warning=True)

    def _model_report(self, report: ModelReport) -> None:
        chat = self._chat
        told = chat.model.learn(report)
        match report:
            case Loading(progress=progress):
                fraction = progress.done / progress.total if progress.total else None
                chat.facts = replace(chat.facts, activity=progress.what or "loading", fraction=fraction)
            case Loaded():
                chat.model_commands.settled()
                chat.facts = replace(chat.facts, model=chat.model.name)
                self.show_figures()
                if not chat.paper.repaints:
                    told = told or f"{chat.model.name} is loaded."
            case LoadFailed():
                chat.model_commands.settled()
                chat.facts = StatusFacts(model=chat.model.name, activity="no model")
            case LoadRefused():
                chat.model_commands.take_back()
            case _:
                if isinstance(report, WentBack):
                    chat.model_commands.take_back()
                chat.facts = StatusFacts(model=chat.model.name, activity="loading")
                if not chat.paper.repaints:
                    told = told or f"Loading {chat.model.name}."
        if told is not None:
            chat.note(told)
        chat.paper.refresh()

    # Answers

    def _job_event(self, report: JobEvent) -> None:
        chat = self._chat
        answering = chat.session.job_event(report)
        if isinstance(report.event, TitleMade) or answering is None:
            return
        shown = answering.conversation_id == chat.session.conversation_id
        match report.event:
            case OneAnswer(index=index, event=event) if shown and chat.comparing.active:
                chat.comparing.take(answering.several.get(index), index, event)
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
        chat = self._chat
        self._figures.begin(started.prompt_tokens)
        for notice in started.notices:
            if notice not in self._notices_told:
                self._notices_told.add(notice)
                chat.note(notice)
        if started.context_notice:
            chat.note(started.context_notice)
        if not shown or answering.message is None or self._message_id == answering.message.id:
            return
        # A cut answer that is gone on with, or one in which another token was taken.
        self.go_on(answering, written=bool(answering.so_far) and self._is_written(answering))
        self._status("reading")

    def _is_written(self, answering: Answering) -> bool:
        """Whether what an answer begins with is on the paper, as all of the one that it takes the place of."""
        old, begun = answering.replaces, answering.message
        return begun is not None and old is not None and self._chat.session.store.message(old).text == begun.text

    def text(self, answering: Answering, tokens: int, *, shown: bool) -> None:
        """An answer has grown."""
        now = time.monotonic()
        self._figures.add(tokens, now)
        if not shown or answering.message is None or self._lines is None or self._message_id != answering.message.id:
            return
        for piece in answering.fresh:
            self._lines.add(piece)
        if (facts := self._figures.news(self._chat.facts, now)) is not None:
            self._chat.facts = facts
        self._paint_soon()

    def closed(self, closed: AnswerClosed, *, shown: bool) -> None:
        """An answer has ended."""
        chat = self._chat
        if closed.error is not None:
            chat.tell(closed.error, warning=True)
            chat.later(_SAVE_AGAIN_SECONDS, self._save_again)
        if not shown:
            return
        rest: list[Fragments] = []
        if self._lines is not None and self._message_id == closed.message.id:
            rest = self._lines.close()
        self._forget()
        if not closed.kept:
            chat.paper.put(rest)
            chat.note("Stopped before there was any text.")
            return
        chat.transcript.mark_written(closed.message.id)
        chat.paper.put([*rest, *chat.transcript.end_of(closed.message)])
        self.show_figures()

    def _job_ended(self, report: JobEnded) -> None:
        chat, session = self._chat, self._chat.session
        answering = session.job_ended(report)
        if answering is None:
            return
        if report.error is not None:
            self._failed(answering, report.error)
        prompt = session.send_next_queued(answering.conversation_id)
        here = answering.conversation_id == session.conversation_id
        if here and (prompt is not None or report.error is not None):
            chat.comparing.forget()
        elif here and answering.for_several:
            chat.comparing.ended()
        if prompt is not None:
            chat.unsent.keep(answering.conversation_id)
        elif report.error is None:
            session.title_when_idle(answering.conversation_id)
        if not here and report.error is None and prompt is None:
            chat.tell("An answer in another conversation has ended; /open shows them")
        if here:
            self._status(chat.model.activity)
            if prompt is not None:
                chat.transcript.show_sent(prompt, waited=True)
        chat.paper.refresh()

    def _failed(self, answering: Answering, line: str) -> None:
        """Say why. A prompt that the loaded model could not take goes back to where messages are typed."""
        chat = self._chat
        if answering.conversation_id != chat.session.conversation_id:
            chat.tell(line, warning=True)
            return
        free = chat.paper.repaints and not chat.editing.active and not chat.paper.typed().strip()
        if answering.message is None and chat.model.failure is None and free and chat.session.take_back(answering):
            assert answering.prompt is not None
            chat.paper.set_text(answering.prompt.text)
        chat.tell(line, warning=True)

    def _save_again(self) -> None:
        """Put answers on disk that could not be written when they ended, as soon as they can be."""
        unkept = self._chat.session.unkept
        if not unkept or self._chat.leaving:
            return
        try:
            unkept.save()
        except StoreError:
            self._chat.later(_SAVE_AGAIN_SECONDS, self._save_again)
        else:
            self._chat.tell("The answer is on disk now")

    # Figures

    def show_figures(self) -> None:
        """Those of the newest answer of the open conversation."""
        chat = self._chat
        answer = chat.session.last_answer
        chat.facts = facts_of(answer, chat.model.info, chat.facts, empty=not chat.session.branch)
        self.place = None
        if answer is not None:
            try:
                ids = [one.id for one in chat.session.store.alternatives(answer.id)]
            except StoreError:
                return
            if len(ids) > 1 and answer.id in ids:
                self.place = (ids.index(answer.id) + 1, len(ids))

    def _status(self, activity: str, fraction: float | None = None) -> None:
        self._chat.facts = replace(self._chat.facts, activity=activity, fraction=fraction)
        self._chat.paper.refresh()
