"""What fits into the model's context, and which messages are left out where not all of them do.

Nothing is left out silently: the plan says what it leaves out, and what cannot be made to fit is an error with numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from exlchat.chat.model import Message

ANSWER_RESERVE = 32
"""Tokens kept free for an answer: fewer would cut it in its first sentence."""

ANSWER_SHARE = 1 / 8
"""Of the context, kept free for an answer where messages can be left out for it."""

KEPT_SHARE = 0.7
"""Of the context, what a prompt takes at most after messages were left out.

The beginning of the prompt changes with every cut, and all of it is then computed again. So a cut is made deep enough
to last for a number of turns.
"""


_FAR_ABOVE = 16
"""Times the limit. A template that drops the thinking of old answers may show a small part of their tokens."""


class ContextFull(Exception):  # noqa: N818 - a state of the conversation, not a fault
    """The prompt leaves no room for an answer; one line with the numbers and what to do."""

    def __init__(self, prompt_tokens: int, reserve: int, max_seq_len: int, *, can_drop: bool = False) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_seq_len = max_seq_len
        policies = ", leave out its oldest messages with /set context_policy drop (or summarise)" if can_drop else ""
        super().__init__(
            f"the prompt has {prompt_tokens:,} tokens and the answer needs room for {reserve:,}, but the context holds "
            f"{max_seq_len:,}; start a new conversation{policies}, shorten the message, or load the model with a "
            "larger --context"
        )


def require_room(
    prompt_tokens: int, max_seq_len: int, *, max_new_tokens: int | None = None, can_drop: bool = False
) -> None:
    """See that an answer still fits behind a prompt.

    Raises:
        ContextFull: fewer tokens are left than the answer may need, at most `ANSWER_RESERVE`. Its line names the
            policies that leave messages out if that `can_drop` any.
    """
    reserve = _at_most(ANSWER_RESERVE, max_new_tokens)
    if prompt_tokens + reserve > max_seq_len:
        raise ContextFull(prompt_tokens, reserve, max_seq_len, can_drop=can_drop)


@dataclass(frozen=True, slots=True)
class Seen:
    """Which messages of a branch the model sees.

    Args:
        messages: these, in their order, all system messages among them.
        first_id: from this message on it sees everything; `None` when it sees the whole branch.
        before: all messages before that one, without system messages: left out, but for pinned turns.
        dropped: how many of them are left out.
    """

    messages: tuple[Message, ...]
    first_id: str | None = None
    before: tuple[Message, ...] = ()
    dropped: int = 0


def plan_context(
    branch: Sequence[Message],
    size: Callable[[Seen], int],
    max_seq_len: int,
    *,
    previous: str | None = None,
    max_new_tokens: int | None = None,
) -> Seen:
    """Leave out the oldest turns where not everything fits.

    A cut stays where it is for as long as prompt and answer fit. Then the new one is as early as brings the prompt to
    `KEPT_SHARE` of the context. Pinned turns, system messages and the last turn stay in any case.

    Args:
        branch: the conversation, which ends with a message of the user.
        size: tokens of the prompt of what is seen. It should not grow when more is left out.
        max_seq_len: tokens of the context.
        previous: the first message that was seen on the turn before.
        max_new_tokens: the longest answer.

    Raises:
        ContextFull: what has to stay does not fit.
    """
    turns = turns_of(branch)
    room = max_seq_len - _at_most(max(int(max_seq_len * ANSWER_SHARE), ANSWER_RESERVE), max_new_tokens)
    target = min(int(max_seq_len * KEPT_SHARE), room)

    @cache
    def cut(number: int) -> tuple[Seen, int]:
        seen = _seen_from(branch, turns, number)
        return seen, size(seen)

    start = _number_of(turns, previous)
    if start and not _far_above(branch, target) and cut(0)[1] <= target:
        start = 0
    if cut(start)[1] <= room:
        return cut(start)[0]
    last = len(turns) - 1
    fitting = bisect_left(range(start, last), True, key=lambda number: cut(number)[1] <= target)
    seen, tokens = cut(start + fitting)
    require_room(tokens, max_seq_len, max_new_tokens=max_new_tokens)
    return seen


def seen_since(branch: Sequence[Message], first_id: str | None) -> Seen:
    turns = turns_of(branch)
    return _seen_from(branch, turns, _number_of(turns, first_id))


def turns_of(branch: Sequence[Message]) -> list[tuple[Message, ...]]:
    """The branch without system messages, in pieces that begin with what the user said and end with the answer.

    Messages of the user that follow each other belong to one turn: they become one message of the prompt.
    """
    turns: list[list[Message]] = []
    for message in branch:
        if message.role == "system":
            continue
        if not turns or (message.role == "user" and turns[-1][-1].role != "user"):
            turns.append([])
        turns[-1].append(message)
    return [tuple(turn) for turn in turns]


def _seen_from(branch: Sequence[Message], turns: Sequence[Sequence[Message]], number: int) -> Seen:
    """What is seen when turns before `number` are left out that have no pinned message."""
    dropped = {one.id for turn in turns[:number] if not any(one.pinned for one in turn) for one in turn}
    if not dropped:
        return Seen(tuple(branch))
    kept = tuple(one for one in branch if one.id not in dropped)
    return Seen(kept, turns[number][0].id, tuple(chain.from_iterable(turns[:number])), len(dropped))


def _number_of(turns: Sequence[Sequence[Message]], first_id: str | None) -> int:
    """The turn that begins with a message; the first one when none does."""
    return next((number for number, turn in enumerate(turns) if turn[0].id == first_id), 0)


def _far_above(branch: Sequence[Message], target: int) -> bool:
    """Whether making the prompt of all of `branch`, which takes its time, can be spared: it will not fit."""
    return sum(len(message.token_ids) for message in branch) > _FAR_ABOVE * target


def _at_most(tokens: int, limit: int | None) -> int:
    return tokens if limit is None else min(tokens, limit)
