"""What the engine thread reports, brought into transcript and status line."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.app.panels.figures import StatusFacts
from exlchat.app.runtime.jobs import (
    Answered,
    JobEnded,
    JobEvent,
    LoadBegun,
    Loaded,
    LoadFailed,
    Loading,
    LoadRefused,
    WentBack,
)
from exlchat.chat.several_answers import OneAnswer
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.titling import TitleMade
from exlchat.chat.turn import AnswerClosed, AnswerStarted, Summarising
from exlchat.llm.events import PrefillProgress, TextDelta
from exlchat.ui.tui.items import SEEN_FROM, live_items, message_items, thoughts_key, waiting_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.chat.answering import Answering
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.runtime.model_state import ModelReport
    from exlchat.chat.model import Message
    from exlchat.llm.info import LoadProgress, ModelInfo
    from exlchat.ui.tui.chat_view import ChatView

_SAVE_AGAIN_SECONDS = 3.0


class AnswerDisplay:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView, recount: Callable[[], None]) -> None:
        """`recount` counts the tokens that are typed anew, by another model."""
        self._screen = screen
        self._recount = recount
        self._notices_told: set[str] = set()
        self._began = 0.0

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
            self._screen.tell(str(error), warning=True)

    def _answered(self, report: Answered) -> None:
        self._screen.session.questions.answered(report.question)
        if report.error is None:
            report.question.tell(report.answer)
        elif report.question.fail is not None:
            report.question.fail(report.error)
        else:
            self._screen.tell(report.error, warning=True)

    # Models

    def _model_report(self, report: ModelReport) -> None:
        told = self._screen.model.learn(report)
        match report:
            case LoadBegun():
                self._show_loading()
            case Loading(progress=progress):
                self._show_progress(progress)
            case Loaded(info=info):
                self._show_loaded(info)
            case LoadRefused() | WentBack():
                self._screen.models.take_back()
            case LoadFailed():
                self._screen.models.settled()
                self._screen.status.facts = StatusFacts(model=self._screen.model.name, activity="no model")
                # An empty conversation shows it in the place of its first line.
                told = told if self._screen.session.branch else None
        if told is not None:
            self._screen.note(told)
        if isinstance(report, WentBack):
            self._show_loading()
        if isinstance(report, LoadFailed):
            self._screen.refresh_around()

    def _show_loading(self) -> None:
        self._screen.status.facts = StatusFacts(model=self._screen.model.name, activity="loading")
        self._screen.show_waiting()
        self._screen.refresh_around()

    def _show_progress(self, progress: LoadProgress) -> None:
        fraction = progress.done / progress.total if progress.total else None
        facts = replace(self._screen.status.facts, activity=progress.what or "loading", fraction=fraction)
        self._screen.status.facts = facts

    def _show_loaded(self, info: ModelInfo) -> None:
        self._screen.status.facts = replace(
            self._screen.status.facts,
            model=self._screen.model.name,
            activity="",
            fraction=None,
            context_max=info.max_seq_len,
        )
        self._screen.models.settled()
        self._screen.refresh_around()
        self._recount()
        self._screen.show_figures_of(self._screen.session.last_answer)
        self._screen.show_waiting()

    # Answers

    def _job_event(self, report: JobEvent) -> None:
        session = self._screen.session
        answering = session.job_event(report)
        if isinstance(report.event, TitleMade):
            self._screen.refresh_around()
        if answering is None:
            return
        shown = answering.conversation_id == session.conversation_id
        match report.event:
            case Summarising() if shown:
                self._tell_status(activity="summarising the earlier conversation…", fraction=None)
            case AnswerStarted() as started:
                self._started(answering, started, shown=shown)
            case PrefillProgress(done=done, total=total) if shown:
                self._tell_status(activity="reading", fraction=done / total if total else None)
            case TextDelta(token_ids=ids):
                self._text(answering, len(ids), shown=shown)
            case AnswerClosed() as closed:
                self._closed(closed, shown=shown)
            case OneAnswer(event=event):
                self._one_of_several(event, shown=shown)

    def _one_of_several(self, event: AnswerStarted | TextDelta | AnswerClosed, *, shown: bool) -> None:
        """Their texts stand side by side on a screen of their own; here is what they have in common."""
        match event:
            case AnswerStarted() as started:
                self._screen.growing.begin(started.prompt_tokens)
                self._began = self._began or time.monotonic()
                self._tell_notices(started, self._screen.tell)
            case TextDelta(token_ids=ids):
                now = time.monotonic()
                self._screen.growing.add(len(ids), now)
                if shown and (facts := self._screen.growing.news(self._screen.status.facts, now)) is not None:
                    self._screen.status.facts = facts
            case AnswerClosed(error=str() as error):
                self._screen.tell(error, warning=True)
                self._screen.set_timer(_SAVE_AGAIN_SECONDS, self._save_again)

    def _started(self, answering: Answering, started: AnswerStarted, *, shown: bool) -> None:
        self._screen.growing.begin(started.prompt_tokens)
        self._began = time.monotonic()
        message = answering.message
        if not shown or message is None:
            self._tell_notices(started, self._screen.tell)
            self._screen.refresh_around()
            return
        seen_from = message.record.seen_from if message.record else None
        moved = started.context_notice is not None or (seen_from is None and self._screen.transcript.holds(SEEN_FROM))
        if moved or answering.replaces is not None or self._screen.transcript.holds(message.id):
            # It is there already when the conversation was opened after the answer began and before we heard of it.
            self._screen.show_messages(but=message.id)
        self._tell_notices(started, self._screen.note)
        self._screen.take_away(waiting_key(answering.conversation_id))
        for item in live_items(message, "".join(answering.thoughts), "".join(answering.answer)):
            self._screen.transcript.append_message(item)
        if self._screen.transcript.has_focus and self._screen.transcript.cursor is None:
            # What the answer takes the place of was under the cursor.
            self._screen.transcript.move_cursor_to(message.id)
        self._screen.refresh_around()
        self._tell_status(activity="reading", fraction=None)

    def _tell_notices(self, started: AnswerStarted, tell: Callable[[str], None]) -> None:
        """Those of format and constraint once in a run; what the model no longer sees each time that changes."""
        for notice in started.notices:
            if notice not in self._notices_told:
                self._notices_told.add(notice)
                tell(notice)
        if started.context_notice:
            tell(started.context_notice)

    def _text(self, answering: Answering, tokens: int, *, shown: bool) -> None:
        now = time.monotonic()
        self._screen.growing.add(tokens, now)
        if not shown or answering.message is None or not self._screen.transcript.holds(answering.message.id):
            # Another program may have moved the branch away from the answer.
            return
        self._show_fresh(answering, answering.message)
        if (facts := self._screen.growing.news(self._screen.status.facts, now)) is not None:
            self._screen.status.facts = facts

    def _show_fresh(self, answering: Answering, message: Message) -> None:
        transcript = self._screen.transcript
        for piece in answering.fresh:
            key = thoughts_key(message.id) if piece.channel == "thought" else message.id
            if transcript.holds(key):
                transcript.append_text(key, piece.text)
                continue
            # The first thought: it stands above the answer, of which there is no word yet.
            transcript.remove_message(message.id)
            for item in live_items(message, piece.text, ""):
                transcript.append_message(item)

    def _closed(self, closed: AnswerClosed, *, shown: bool) -> None:
        message = closed.message
        if closed.error is not None:
            self._screen.tell(closed.error, warning=True)
            self._screen.set_timer(_SAVE_AGAIN_SECONDS, self._save_again)
        if not shown:
            return
        if not closed.kept:
            self._screen.show_messages()
            self._screen.note("Stopped before there was any text.")
        elif self._screen.transcript.holds(message.id):
            items = message_items(message, self._screen.session.places)
            if all(self._screen.transcript.holds(item.key) for item in items):
                for item in items:
                    self._screen.transcript.close_message(
                        item.key, item.text, footer=item.footer, status=item.status, fold=item.fold
                    )
                    if item.folded:
                        self._screen.transcript.show_as(item.key, "folded")
            else:
                self._screen.show_messages()
            self._screen.show_figures_of(message)

    def _job_ended(self, report: JobEnded) -> None:
        session = self._screen.session
        answering = session.job_ended(report)
        if answering is None:
            return
        if report.error is not None and answering.for_several:
            # The screen on which they stand side by side covers the transcript.
            self._screen.tell(report.error, warning=True)
        elif report.error is not None:
            self._failed(answering, report.error)
        prompt = session.send_next_queued(answering.conversation_id)
        if prompt is not None:
            self._screen.unsent.keep(answering.conversation_id)
        else:
            self._tell_desktop()
            if report.error is None:
                session.title_when_idle(answering.conversation_id)
        if answering.conversation_id != session.conversation_id:
            self._screen.refresh_around()
            return
        self._screen.take_away(waiting_key(answering.conversation_id))
        self._tell_status(activity=self._screen.model.activity, fraction=None)
        if answering.for_several:
            self._screen.show_messages()
        if prompt is not None:
            self._screen.show_prompt(prompt)
        self._screen.refresh_around()

    def _tell_desktop(self) -> None:
        """A long wait is over, and whoever waits looks at another window."""
        after = self._screen.services.shelf.settings.notify_after
        if after and self._began and time.monotonic() - self._began >= after and not self._screen.app.app_focus:
            self._screen.tell_desktop("exlchat: the answer has ended")
        self._began = 0.0

    def _failed(self, answering: Answering, line: str) -> None:
        """Say why. A prompt that the loaded model could not take goes back into the composer."""
        screen = self._screen
        if answering.conversation_id != screen.session.conversation_id:
            screen.tell(line, warning=True)
            return
        begun = answering.message is not None
        composer_free = not screen.composer.text.strip()
        if not begun and screen.model.failure is None and composer_free and screen.session.take_back(answering):
            assert answering.prompt is not None
            screen.composer.set_text(answering.prompt.text)
        screen.show_messages()
        screen.note(line)

    def _save_again(self) -> None:
        """Put answers on disk that could not be written when they ended, as soon as they can be."""
        unkept = self._screen.session.unkept
        if not unkept:
            return
        try:
            unkept.save()
        except StoreError:
            self._screen.set_timer(_SAVE_AGAIN_SECONDS, self._save_again)
        else:
            self._screen.tell("The answer is on disk now")

    def _tell_status(self, *, activity: str, fraction: float | None) -> None:
        self._screen.status.facts = replace(self._screen.status.facts, activity=activity, fraction=fraction)
