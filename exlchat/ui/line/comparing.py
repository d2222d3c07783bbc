"""Several answers to one message, written one after the other, each by its number among the alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.store import StoreError
from exlchat.ui.chat_session import NotPossibleError

if TYPE_CHECKING:
    from exlchat.ui.comparison import Comparison
    from exlchat.ui.line.chat import LineChat


class Comparing:
    """Belongs to one chat and runs on its thread."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._comparison: Comparison | None = None

    def begin(self, many: str) -> None:
        """Have that many answers, two without a number; the last answer is the first of them.

        Raises:
            NotPossibleError: as of `Comparison`.
        """
        if many and not many.isdecimal():
            raise NotPossibleError(f"{many!r} is no number of answers, such as 3")
        # No start needs it.
        from exlchat.ui.comparison import Comparison

        chat = self._chat
        self._comparison = comparison = Comparison(chat.session, int(many or 2))
        chat.note(f"{comparison.many} answers to the last message, one after the other; ctrl+c stops")
        if comparison.ids and (last := chat.session.last_answer) is not None:
            chat.note(f"Alternative {self._number()}:")
            chat.transcript.write_again(last)
        comparison.advance()

    def answer_begins(self) -> None:
        """An answer of the open conversation begins to be written."""
        if (comparison := self._here()) is not None:
            comparison.advance()
            self._chat.note(f"Alternative {self._number()}:")

    def answer_ended(self) -> None:
        """An answer of the open conversation has ended: have the next one begun, or say how to choose."""
        if (comparison := self._here()) is None:
            return
        try:
            if not comparison.ended:
                comparison.advance()
        except (StoreError, NotPossibleError) as error:
            self._comparison = None
            self._chat.tell(str(error), warning=True)
            return
        if comparison.ended:
            self._comparison = None
            self._chat.note(f"Alternative {self._number()} is shown now; /alternative N keeps another one")

    def stop(self) -> None:
        """No further answers, if any are still to come; the one on its way is stopped by others."""
        if self._comparison is not None:
            self._comparison.stop()

    def forget(self) -> None:
        """Something else goes on in the conversation, or another one is open: no further answers."""
        self._comparison = None

    def _here(self) -> Comparison | None:
        comparison = self._comparison
        if comparison is None or self._chat.session.conversation_id != comparison.conversation_id:
            return None
        return comparison

    def _number(self) -> int:
        """Which alternative the last answer is."""
        last = self._chat.session.last_answer
        return self._chat.session.places.get(last.id, (1, 1))[0] if last is not None else 1
