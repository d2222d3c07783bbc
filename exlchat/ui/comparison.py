"""Several answers to one prompt, to be held against each other: made one after the other, from one reading of it.

The prompt is read for the first of them; for the others the cache holds it. Each is an answer like any other, kept as
an alternative from its first word on, so that a stop, a crash or a quit loses none. No terminal library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from exlchat.chat.answer_parts import answer_parts
from exlchat.ui.chat_session import NotPossibleError

if TYPE_CHECKING:
    from exlchat.ui.chat_session import ChatSession

MOST = 8


class Comparison:
    """Belongs to one session and runs on its thread. What it raises is as of `tree_actions`."""

    def __init__(self, session: ChatSession, many: int) -> None:
        """Begin: the last answer is the first to be held against others, or there is none yet.

        Raises:
            NotPossibleError: there is nothing to answer, an answer is on its way, or all would be the same.
            StoreError: what was said cannot be read.
        """
        session.require_quiet()
        last = session.last_said
        if not 2 <= many <= MOST:
            raise NotPossibleError(f"{many} answers cannot be compared; give a number from 2 to {MOST}")
        if last is None:
            raise NotPossibleError("there is nothing to answer yet")
        if session.generation.sampling.greedy:
            raise NotPossibleError("all answers would be the same at temperature 0; /set temperature 0.7 first")
        self._session = session
        self._generation = session.generation
        self.conversation_id = session.require_open()
        self.ids: list[str] = [] if last.role == "user" else [last.id]
        self.many = many
        self._begun = self._stopped = False

    @property
    def ended(self) -> bool:
        """Whether no further answer will come."""
        under_way = self._session.under_way_in(self.conversation_id)
        return under_way is None and (self._stopped or len(self.ids) >= self.many)

    def advance(self) -> None:
        """Take note of the answer on its way, or have the next one begun."""
        answering = self._session.under_way_in(self.conversation_id)
        if answering is not None:
            if answering.message is not None and answering.message.id not in self.ids:
                self.ids.append(answering.message.id)
            return
        if self._session.conversation_id != self.conversation_id:
            return
        last = self._session.last_answer
        if last is not None and last.id not in self.ids and self._begun:
            # It has begun and ended since somebody looked.
            self.ids.append(last.id)
        if self._stopped or len(self.ids) >= self.many:
            return
        self._begun = True
        seed = self._generation.seed
        # With a seed of its own each is another answer, and can still be given again.
        generation = self._generation if seed is None else replace(self._generation, seed=seed + len(self.ids))
        self._session.answer_tip(retry_of=self.ids[-1] if self.ids else None, generation=generation)

    def stop(self) -> None:
        """Ask for no further ones; the one on its way is ended with the text it has."""
        self._stopped = True
        self._session.stop_in(self.conversation_id)

    def texts(self) -> list[str]:
        """What each answer says so far, thoughts left out."""
        answering = self._session.under_way_in(self.conversation_id)
        texts = []
        for ident in self.ids:
            if answering is not None and answering.message is not None and answering.message.id == ident:
                texts.append("".join(answering.answer))
            else:
                texts.append(answer_parts(self._session.store.message(ident)).answer)
        return texts

    def keep(self, number: int) -> None:
        """Show one of them, counted from 0; the others stay its alternatives."""
        self._session.store.jump(self.ids[number])
        self._session.reload()
