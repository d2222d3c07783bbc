"""Everything a person can do, in one registry: keys, slash commands and palette entries are doors to the same action.

The help screen is generated from it, and the guide's answers are checked against it. No terminal library here.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from exlchat.app.commands import (
    answer_options,
    answers,
    arranging,
    cache,
    composing,
    conversations,
    groups,
    messages,
    model,
    program,
    sampling,
    serving,
    speaking,
)
from exlchat.app.commands.action import DECLARED, Action, Situation, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.view import View


def _in_order() -> Iterator[Action]:
    first = DECLARED["send"]
    behind = defaultdict(list)
    for before, one in pairwise((first, *DECLARED.values())):
        if one is not first:
            behind[one.after or before.id].append(one)

    def and_followers(one: Action) -> Iterator[Action]:
        yield one
        for follower in reversed(behind[one.id]):
            yield from and_followers(follower)

    return and_followers(first)


TOPICS = (
    composing,
    conversations,
    arranging,
    answers,
    messages,
    speaking,
    groups,
    sampling,
    model,
    serving,
    cache,
    program,
    answer_options,
)
"""The files that declare them."""

ACTIONS: tuple[Action, ...] = tuple(_in_order())
"""In the order to show them."""

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}
BY_SLASH: dict[str, Action] = {action.slash: action for action in ACTIONS if action.slash}
BY_NAME: dict[str, Action] = {**{name: action for action in ACTIONS for name in action.aliases}, **BY_SLASH}
"""By slash command and by each of its aliases."""


def completions(text: str, now: Situation | None = None) -> list[Action]:
    """Actions whose slash command is meant by `text`, for as long as only a command has been typed.

    First those that begin with it, then, where there are two letters and more, those with an alias that does, and
    those that have its letters in this order.

    Args:
        text: as typed.
        now: leaves out what cannot be done now, but not what the model cannot do; `None` leaves out nothing.
    """
    if not text.startswith("/") or text.startswith("//") or any(mark.isspace() for mark in text):
        return []
    typed = text[1:].lower()
    possible = [action for _, action in sorted(BY_SLASH.items()) if now is None or action.available(now)]
    begun = [action for action in possible if action.usage[1:].startswith(typed)]
    if len(typed) > 1:
        begun += [action for action in possible if any(name[1:].startswith(typed) for name in action.aliases)]
        begun += [action for action in possible if _has_letters((action.slash or "")[1:], typed)]
    return list({action.id: action for action in begun}.values())


def _has_letters(word: str, letters: str) -> bool:
    rest = iter(word)
    return all(letter in rest for letter in letters)


def situation_of(session: ChatSession) -> Situation:
    last = session.last_said
    return Situation(
        answering=session.answering is not None,
        can_stop=session.answering is not None or session.being_written is not None,
        has_messages=bool(session.branch),
        has_answer=session.last_answer is not None,
        can_retry=last is not None,
        answer_was_cut=session.can_continue,
        can_undo_in_list=bool(session.list_history),
        lacks=session.lacks,
    )


class Commands:
    """Carries actions out for one view.

    Args:
        view: on which; it also says what cannot be done now.
        own: what this view alone does, or otherwise than the registry says, by the id of the action.
    """

    def __init__(self, view: View, own: Mapping[str, Callable[[str], None]]) -> None:
        self._view = view
        self._own = own
        view.session.on_refused = partial(view.tell, warning=True)

    def known(self, action_id: str) -> bool:
        return action_id in self._own or BY_ID[action_id].handler is not None

    def run(self, action_id: str, argument: str = "") -> bool:
        """Do an action that is known; one that cannot be done says why. Whether it was done."""
        if self.refused(action_id, argument):
            return False
        handler = BY_ID[action_id].handler
        own = self._own.get(action_id)
        if own is not None:
            done = attempt(self._view, lambda: own(argument))
        else:
            assert handler is not None, action_id
            done = attempt(self._view, lambda: handler(self._view, argument))
        self._view.show_spoken()
        return done

    def refused(self, action_id: str, argument: str = "") -> bool:
        """Say so where the model cannot do it; whether that is so."""
        action = BY_ID[action_id]
        reason = action.lacking(self._view.session.lacks)
        if not reason or argument.lower() in action.lets_go:
            return False
        self._view.tell(f"{action.slash or action.title}: {reason}", warning=True)
        return True
