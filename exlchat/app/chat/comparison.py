"""Several answers to one prompt, to be held against each other: made side by side, from one reading of it.

Each is an answer like any other, kept as an alternative from its first word on, so that a stop, a crash or a quit loses
none. No terminal library.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.llm.limits import MOST_ANSWERS

if TYPE_CHECKING:
    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.session import ChatSession
    from exlchat.chat.model import Message


class Comparison:
    """Belongs to one session and runs on its thread. What it raises is as of `tree_actions`."""

    def __init__(self, session: ChatSession, many: int) -> None:
        """Begin: the last answer is the first to be held against others, or there is none yet.

        Raises:
            NotPossibleError: there is nothing to answer, an answer is on its way, or all would be the same.
            StoreError: what was said cannot be read or written.
        """
        session.require_quiet()
        last = session.last_said
        if not 2 <= many <= MOST_ANSWERS:
            raise NotPossibleError(f"{many} answers cannot be compared; give a number from 2 to {MOST_ANSWERS}")
        if last is None:
            raise NotPossibleError("there is nothing to answer yet")
        if session.generation.sampling.greedy:
            raise NotPossibleError("all answers would be the same at temperature 0; /set temperature 0.7 first")
        self._session = session
        self.conversation_id = session.require_open()
        self.many = many
        self.given: str | None = None if last.role == "user" else last.id
        """The id of the answer that was there before."""
        self._shown_before = session.conversation.tip_id if session.conversation is not None else None
        first, seed = int(self.given is not None), session.generation.seed
        # With a seed of its own each is another answer, and can still be given again.
        seeds = [None if seed is None else seed + number for number in range(first, many)]
        self._answering: PendingAnswer = session.answer_several(seeds, retry_of=self.given)

    @property
    def ended(self) -> bool:
        return self._session.under_way_in(self.conversation_id) is not self._answering

    @property
    def ids(self) -> list[str]:
        """Of those that have begun, in their order; one that came to nothing is none of them."""
        new = [one.message.id for _, one in sorted(self._answering.several.items()) if one.message is not None]
        return new if self.given is None else [self.given, *new]

    def stop(self) -> None:
        if not self.ended:
            self._session.stop_in(self.conversation_id)

    def choose_none(self) -> str:
        """End them and show what was shown before; a line that says so."""
        session = self._session
        if self.ended:
            if self._shown_before is not None:
                session.store.set_tip(self.conversation_id, self._shown_before)
            session.reload()
        else:
            # One that begins at this very moment would be shown after all.
            self._answering.back_to = self._shown_before
            self.stop()
        many = len(self.ids)
        if self.given is not None:
            return "None was chosen: the answer of before is shown, the others are its alternatives"
        return f"None of {many} was chosen; /tree has them, /retry has another" if many else "None was chosen"

    def rates(self) -> list[str]:
        """How fast each of them came, in words; empty where nothing is known."""
        before = [] if self.given is None else [self._session.store.message(self.given)]
        begun = [one for _, one in sorted(self._answering.several.items()) if one.message is not None]
        return [*(_rate(one) for one in before), *map(self._rate_of, begun)]

    def _rate_of(self, one: PendingAnswer) -> str:
        assert one.message is not None
        if one.message.status != "streaming":
            return _rate(one.message)
        tokens, rate = one.growing.tokens, one.growing.rate(time.monotonic())
        return f"{tokens} tokens · {rate:.1f} tokens/s" if rate is not None else f"{tokens} tokens"

    def texts(self) -> list[str]:
        begun = [one for _, one in sorted(self._answering.several.items()) if one.message is not None]
        before = [] if self.given is None else [answer_parts(self._session.store.message(self.given)).answer]
        return [*before, *map(_text, begun)]

    def keep(self, number: int) -> None:
        """Show one of them, counted from 0; the others stay its alternatives."""
        self._session.store.jump(self.ids[number])
        self._session.reload()


def _rate(message: Message) -> str:
    stats = message.record.stats if message.record is not None else None
    return f"{stats.new_tokens} tokens · {stats.tokens_per_second:.1f} tokens/s" if stats is not None else ""


def _text(one: PendingAnswer) -> str:
    message = one.message
    assert message is not None
    return "".join(one.answer) if message.status == "streaming" else answer_parts(message).answer
