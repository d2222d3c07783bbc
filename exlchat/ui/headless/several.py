"""Several answers of `exlchat ask`: as text one after the other, as JSON lines as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, OneAnswer, SeveralEvent
from exlchat.llm.events import TextDelta
from exlchat.ui.headless.answer import AnswerTelling
from exlchat.ui.headless.output import JsonLinesOutput, TextOutput
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import write_text

if TYPE_CHECKING:
    from exlchat.app.library.memory import ModelMemory
    from exlchat.llm.port import TextModel
    from exlchat.ui.terminal.standard_streams import ErrorLines


class SeveralTelling:
    """Writes the events of several answers.

    As text they stand below lines that count them, `--- 1 of 3 ---`: the first that has not ended is written as it
    comes, the others wait. JSON lines say in `answer` which one they are of, from 1 on.

    Args:
        many: answers.
        jsonl: write JSON lines.
        memory: knows what was said of the model before.
        kept: the id of the conversation, `None` when nothing is kept.
    """

    def __init__(
        self,
        lines: ErrorLines,
        *,
        many: int,
        jsonl: bool,
        engine: TextModel,
        memory: ModelMemory,
        kept: str | None,
    ) -> None:
        self._lines = lines
        self._many = many
        self._in_order = not jsonl

        def telling(answer: int | None) -> AnswerTelling:
            output = JsonLinesOutput(answer=answer) if jsonl else TextOutput()
            return AnswerTelling(output, lines, engine=engine, memory=memory, kept=kept)

        self._prompt = telling(None)
        self._tellings = [telling(number) for number in range(1, many + 1)]
        self._waiting: list[list[AnswerStarted | TextDelta | AnswerClosed]] = [[] for _ in range(many)]
        self._at = 0
        self._code = ExitCode.OK

    @property
    def begun(self) -> bool:
        return any(telling.begun for telling in self._tellings)

    def show(self, event: SeveralEvent) -> ExitCode:
        if isinstance(event, OneAnswer):
            if self._in_order:
                self._waiting[event.index].append(event.event)
                self._write_waiting()
            else:
                self._tell(event.index, event.event)
        else:
            self._prompt.show(event)
        # What ends before any answer has begun was stopped, or raises.
        return self._code if self.begun else ExitCode.STOPPED

    def _write_waiting(self) -> None:
        while self._at < self._many and self._waiting[self._at]:
            event = self._waiting[self._at].pop(0)
            if isinstance(event, AnswerStarted):
                self._lines.clear()
                write_text(f"--- {self._at + 1} of {self._many} ---\n")
            self._tell(self._at, event)
            if isinstance(event, AnswerClosed):
                self._at += 1

    def _tell(self, index: int, event: AnswerStarted | TextDelta | AnswerClosed) -> None:
        code = self._tellings[index].show(event)
        self._code = self._code if code is ExitCode.OK else code
