"""One answer of `exlchat ask`, event by event: thoughts and answer told apart, notices, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.answer_parts import marks_of
from exlchat.chat.thinking import Piece, ThinkingSplitter
from exlchat.chat.turn import AnswerClosed, AnswerStarted, Summarising, TurnEvent
from exlchat.engine.events import PrefillProgress, TextDelta
from exlchat.ui.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.ui.headless_output import AnswerOutput, ErrorLines


class AnswerTelling:
    """Writes the events of one turn."""

    def __init__(self, output: AnswerOutput, lines: ErrorLines, *, model: str, kept: str | None) -> None:
        """`kept` is the id of the conversation, `None` when nothing is kept."""
        self._output = output
        self._lines = lines
        self._model = model
        self._kept = kept
        self._splitter: ThinkingSplitter | None = None
        self._words = 0
        self.begun = False
        """Whether the prompt was taken: an answer is on disk."""

    def show(self, event: TurnEvent) -> ExitCode:
        """Writes one event; the code of the last one is that of the program."""
        match event:
            case AnswerStarted():
                self._start(event)
            case Summarising():
                self._lines.show("summarising the earlier conversation")
            case PrefillProgress():
                self._lines.reading(event)
                self._output.progress(event)
            case TextDelta(text=text):
                self._tell([Piece("answer", text)] if self._splitter is None else self._splitter.feed(text))
            case AnswerClosed():
                return self._close(event)
        return ExitCode.OK

    def _start(self, event: AnswerStarted) -> None:
        self.begun = True
        for notice in (event.notice, event.context_notice):
            if notice:
                self._lines.say(notice)
        marks = marks_of(event.message)
        self._splitter = None if marks is None else ThinkingSplitter(marks)
        if self._splitter is not None:
            # Of a cut answer that goes on: it is not said again, but it may have been cut among its thoughts.
            self._splitter.feed(event.message.text)
        self._output.start(model=self._model, conversation=self._kept, prompt_tokens=event.prompt_tokens)

    def _tell(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.kind == "thinking":
                self._words += len(piece.text.split())
                self._lines.thinking(self._words)
                self._output.thoughts(piece.text)
            else:
                self._lines.clear()
                self._output.text(piece.text)

    def _close(self, event: AnswerClosed) -> ExitCode:
        if self._splitter is not None:
            self._tell(self._splitter.finish())
        self._lines.clear()
        if event.finished is not None:
            self._output.finish(event.finished)
            if event.finished.reason == "context_full":
                self._lines.say("the context is full; the answer was cut")
            elif event.finished.reason == "repeating":
                self._lines.say("the answer was stopped: it said the same over and over; --continue goes on")
        if event.error is not None:
            self._lines.say(event.error)
        stopped = event.finished is not None and event.finished.reason == "cancelled"
        return ExitCode.STOPPED if stopped else ExitCode.OK
