"""Several answers to one message. They grow side by side and are written one after the other, each by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.turn import AnswerClosed, AnswerStarted, TextDelta

if TYPE_CHECKING:
    from exlchat.app.chat.answering import Answering
    from exlchat.app.chat.comparison import Comparison
    from exlchat.ui.line.chat import LineChat


class Comparing:
    """Belongs to one chat and runs on its thread."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
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

        chat = self._chat
        given = chat.session.last_answer
        self._comparison = comparison = Comparison(chat.session, int(many or 2))
        self._begun, self._closed, self._written = {}, {}, 0
        chat.note(f"{comparison.many} answers to the last message, written one after the other; ctrl+c stops")
        if comparison.given is not None and given is not None:
            chat.note(f"Alternative {self._number(given.id)}:")
            chat.transcript.write_again(given)

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
                self._chat.answers.text(one, len(ids), shown=True)
            case AnswerClosed():
                self._closed[index] = event
                while (closed := self._closed.pop(self._written, None)) is not None:
                    self._chat.answers.closed(closed, shown=True)
                    self._written += 1
                    if self._written in self._begun:
                        self._write(self._written)

    def ended(self) -> None:
        """The answers on their way in the open conversation have ended: say how to choose."""
        comparison, self._comparison = self._comparison, None
        last = self._chat.session.last_answer
        if last is None:
            return
        if comparison is None:
            # They grew while something else was shown.
            self._chat.transcript.write_again(last)
        self._chat.note(f"Alternative {self._number(last.id)} is shown now; /alternative N keeps another one")

    def forget(self) -> None:
        """Something else goes on in the conversation, or another one is open: they are written no more."""
        self._comparison = None

    def _write(self, index: int) -> None:
        one, started = self._begun[index]
        self._chat.note(f"Alternative {self._number(started.message.id)}:")
        self._chat.answers.started(one, started, shown=True)

    def _number(self, ident: str) -> int:
        """Which alternative an answer is."""
        ids = [one.id for one in self._chat.session.store.alternatives(ident)]
        return ids.index(ident) + 1 if ident in ids else 1
