"""Answers in lines: as they begin, grow and end, one alone or several to be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.runtime.jobs import LoadBegun, Loaded, WentBack
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted
from exlchat.llm.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.comparison import Comparison
    from exlchat.app.runtime.model_state import ModelReport
    from exlchat.chat.model import Message
    from exlchat.ui.line.view import LineView


class Answers:
    """An `AnswerView`. Belongs to one chat and runs on its thread."""

    def __init__(self, view: LineView) -> None:
        self._view = view
        self.comparing = Comparing(view, self)

    def begin(self, answering: PendingAnswer, notices: Sequence[str], *, moved: bool) -> None:
        """Behind what is written; what it begins with is not written twice."""
        del moved
        view, message = self._view, answering.message
        assert message is not None
        for notice in notices:
            view.note(notice)
        if not view.scrollback.grows(message.id):
            # A cut answer that is gone on with, or one in which another token was taken.
            view.scrollback.go_on(answering, written=bool(answering.so_far) and self._is_written(answering))
        view.console.refresh()

    def _is_written(self, answering: PendingAnswer) -> bool:
        """Whether what an answer begins with is on the console, as all of the one that it takes the place of."""
        old, begun = answering.replaces, answering.message
        return begun is not None and old is not None and self._view.session.store.message(old).text == begun.text

    def grow(self, answering: PendingAnswer) -> bool:
        scrollback, message = self._view.scrollback, answering.message
        if message is None or not scrollback.grows(message.id):
            return False
        scrollback.add(answering.fresh)
        return True

    def close(self, closed: AnswerClosed) -> None:
        view = self._view
        grew, rest = view.scrollback.grows(closed.message.id), view.scrollback.end()
        rest = rest if grew else []
        if not closed.kept:
            view.console.put(rest)
            view.note("Stopped before there was any text.")
            return
        view.scrollback.mark_written(closed.message.id)
        view.console.put([*rest, *view.scrollback.end_of(closed.message)])
        view.show_figures()

    def one_of_several(
        self, one: PendingAnswer | None, index: int, event: AnswerStarted | TextDelta | AnswerClosed
    ) -> None:
        if self.comparing.active:
            self.comparing.take(one, index, event)

    def ended(self, answering: PendingAnswer, *, failed: bool, prompt: Message | None, seconds: float) -> None:
        """In another conversation it is only told."""
        del seconds
        view = self._view
        here = answering.conversation_id == view.session.conversation_id
        if here and (prompt is not None or failed):
            self.comparing.forget()
        elif here and answering.for_several:
            self.comparing.ended()
        if not here and not failed and prompt is None:
            view.tell("An answer in another conversation has ended; /open shows them")
        if here and prompt is not None:
            view.scrollback.show_sent(prompt, waited=True)

    @property
    def can_take_back(self) -> bool:
        view = self._view
        return view.console.repaints and not view.editing.active and not view.console.typed().strip()

    def take_back(self, prompt: str) -> None:
        self._view.console.set_text(prompt)

    def failed(self, line: str) -> None:
        self._view.tell(line, warning=True)

    def model_changed(self, report: ModelReport, told: str | None) -> None:
        """In a line; where no bar shows it, that it is being loaded as well."""
        view = self._view
        if not view.console.repaints:
            match report:
                case Loaded():
                    told = told or f"{view.model.name} is loaded."
                case LoadBegun() | WentBack():
                    told = told or f"Loading {view.model.name}."
        if told is not None:
            view.note(told)
        view.console.refresh()


class Comparing:
    """Several answers to one message. They grow side by side and are written one after the other, by their numbers."""

    def __init__(self, view: LineView, answers: Answers) -> None:
        self._view = view
        self._answers = answers
        self._comparison: Comparison | None = None
        self._begun: dict[int, tuple[PendingAnswer, AnswerStarted]] = {}
        self._closed: dict[int, AnswerClosed] = {}
        self._written = 0
        """So many of them are on the console."""

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
        return self._comparison is not None

    def take(self, one: PendingAnswer | None, index: int, event: AnswerStarted | TextDelta | AnswerClosed) -> None:
        """One of them, counted from 0, has begun, grown or ended: the first that has not ended is seen to grow."""
        match event:
            case AnswerStarted() if one is not None:
                self._begun[index] = one, event
                if index == self._written:
                    self._write(index)
            case TextDelta() if one is not None and index == self._written:
                self._answers.grow(one)
            case AnswerClosed():
                self._closed[index] = event
                while (closed := self._closed.pop(self._written, None)) is not None:
                    self._answers.close(closed)
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
        self._answers.begin(one, (), moved=False)
        self._view.facts = replace(self._view.facts, activity="reading", fraction=None)

    def _number(self, ident: str) -> int:
        """Which alternative an answer is."""
        ids = [one.id for one in self._view.session.store.alternatives(ident, gone_on_from=False)]
        return ids.index(ident) + 1 if ident in ids else 1
