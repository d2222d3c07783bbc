"""`/probabilities` by numbers: which answer, and which of its tokens is to be another one. For app and line mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.store.conversations import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.commands.chat_front import ChatFront
    from exlchat.chat.answer_chances import AnswerChances


class TokenCommands:
    """Belongs to one front. What cannot be done is raised, as by `tree_actions`, or told where it turns out later.

    Args:
        front: where it is told.
        show: shows the tokens of an answer by its id.
    """

    def __init__(self, front: ChatFront, show: Callable[[str], None]) -> None:
        self._front = front
        self._show = show

    def run(self, numbers: str) -> None:
        """Nothing, N or N PLACE RANK, where N counts messages from the end; without it the last answer is meant."""
        session, words = self._front.session, numbers.split()
        if len(words) not in (0, 1, 3) or not all(word.isdecimal() for word in words):
            raise NotPossibleError("/probabilities takes the number N of a message, or N PLACE RANK, such as 1 12 2")
        back = words[0] if words else ""
        message = (None if words else session.last_answer) or tree_actions.said_back(session, back)
        tree_actions.require_laid_open(session, message.id)
        if len(words) < 3:
            self._show(message.id)
            return
        session.questions.chances(
            message.id,
            partial(self._take, message.id, int(words[1]), int(words[2])),
            template=session.template,
            policy=session.generation.context_policy,
        )

    def _take(self, message_id: str, place: int, rank: int, chances: AnswerChances | None) -> None:
        if chances is None:
            return
        try:
            self._front.session.take_token(message_id, chances.beginning(place - 1, _token(chances, place, rank)))
        except (NotPossibleError, StoreError) as error:
            self._front.tell(str(error), warning=True)
        else:
            self._front.show_messages()


def _token(chances: AnswerChances, place: int, rank: int) -> int:
    """The token of that rank at that place; both are counted from 1."""
    if not 1 <= place <= len(chances.places):
        raise NotPossibleError(
            f"there is no place {place:,}; there are {len(chances.places):,}, the last one behind all"
        )
    top = chances.places[place - 1].top
    if not 1 <= rank <= len(top):
        raise NotPossibleError(f"there is no token of rank {rank:,} to be taken; there are 1 to {len(top)}")
    return top[rank - 1].token_id
