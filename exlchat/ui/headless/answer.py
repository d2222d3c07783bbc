"""One answer of `exlchat ask`, event by event: thoughts and answer told apart, notices, and the exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.chat.prompt.layout import single_texts
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, Summarising, TurnEvent
from exlchat.llm.events import PrefillProgress, TextDelta
from exlchat.ui.headless.output import told
from exlchat.ui.terminal.exit_codes import ExitCode

if TYPE_CHECKING:
    from exlchat.app.library.memory import ModelMemory
    from exlchat.llm.events import Channel
    from exlchat.llm.port import TextModel
    from exlchat.ui.headless.output import AnswerOutput
    from exlchat.ui.terminal.standard_streams import ErrorLines


class AnswerTelling:
    def __init__(
        self, output: AnswerOutput, lines: ErrorLines, *, engine: TextModel, memory: ModelMemory, kept: str | None
    ) -> None:
        """`engine` answers; `memory` knows what was said of it before; `kept` is the id of the conversation, `None`
        when nothing is kept."""
        self._output = output
        self._lines = lines
        self._engine = engine
        self._memory = memory
        self._kept = kept
        self._words = 0
        self._begun = ""
        self.begun = False
        """Whether the prompt was taken: an answer is on disk."""

    def show(self, event: TurnEvent) -> ExitCode:
        match event:
            case AnswerStarted():
                self._start(event)
            case Summarising():
                self._lines.show("summarising the earlier conversation")
            case PrefillProgress():
                self._lines.reading(event)
                self._output.progress(event)
            case TextDelta(text=text, channel=channel, chances=chances):
                self._tell(text, channel)
                if chances:
                    named = {one.token_id for place in chances for one in told(place)}
                    self._output.tokens(chances, single_texts(self._engine, named))
            case AnswerClosed():
                return self._close(event)
        return ExitCode.OK

    def _start(self, event: AnswerStarted) -> None:
        self.begun = True
        about = event.model_notice
        if about is not None and self._memory.is_news(Path(self._engine.info.path), about):
            self._lines.say(about)
        for notice in (*event.notices, event.context_notice):
            if notice:
                self._lines.say(notice)
        self._output.start(model=self._engine.info.name, conversation=self._kept, prompt_tokens=event.prompt_tokens)
        # A cut answer that goes on is not said again.
        if event.message.text and event.message.edited_from is None:
            self._begun = event.message.text
            for piece in event.begun:
                self._tell(piece.text, piece.channel)

    def _tell(self, text: str, channel: Channel) -> None:
        if channel == "thought":
            self._words += len(text.split())
            self._lines.thinking(self._words)
            self._output.thoughts(text)
        elif text and channel == "answer":
            self._lines.clear()
            self._output.text(text)

    def _close(self, event: AnswerClosed) -> ExitCode:
        self._lines.clear()
        if event.finished is not None:
            self._output.finish(replace(event.finished, text=self._begun + event.finished.text))
            if event.finished.reason == "context_full":
                self._lines.say("the context is full; the answer was cut")
            elif event.finished.reason == "repeating":
                self._lines.say("the answer was stopped: it said the same over and over; --continue goes on")
        if event.error is not None:
            self._lines.say(event.error)
            return ExitCode.ERROR
        stopped = event.finished is not None and event.finished.reason == "cancelled"
        return ExitCode.STOPPED if stopped else ExitCode.OK
