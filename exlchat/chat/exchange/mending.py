"""A tree out of messages that name their parents, whatever is wrong with the names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exlchat.chat.exchange.limits import MESSAGES, ExchangeError, Problems
from exlchat.chat.model import Message


def mended(messages: Sequence[Message], problems: Problems, where: str) -> tuple[Message, ...]:
    """The same messages, parents before children, else in the same order.

    A second message with an id gets another id. One whose parent is missing, or which is its own ancestor, is hung
    under the last message that was placed. Each kind of repair is one line.

    Raises:
        ExchangeError: more than `MESSAGES` messages.
    """
    if len(messages) > MESSAGES:
        raise ExchangeError(f"it has {len(messages)} messages; at most {MESSAGES} are read")
    unique = _with_ids_of_their_own(messages, problems, where)
    placed = _Placement(unique)
    placed.run()
    if placed.orphans:
        problems.add(where, f"{_number(placed.orphans)} no parent; put behind the message before")
    if placed.cyclic:
        problems.add(where, f"{_number(placed.cyclic)} themselves among their ancestors; put behind the message before")
    return _with_known_originals(placed.placed, problems, where)


def known_tip(messages: Sequence[Message], tip_id: str | None, problems: Problems, where: str) -> str | None:
    """`tip_id`, or the last message if there is none of that id, which is one line."""
    if not messages:
        return None
    if tip_id is None or any(message.id == tip_id for message in messages):
        return tip_id
    problems.add(where, "the message that it showed last is missing; it ends at the last one there is")
    return messages[-1].id


def _with_ids_of_their_own(messages: Sequence[Message], problems: Problems, where: str) -> list[Message]:
    seen = {message.id for message in messages}
    if len(seen) == len(messages):
        return list(messages)
    problems.add(where, f"{len(messages) - len(seen)} ids are of several messages; the later ones got others")
    given: set[str] = set()
    unique: list[Message] = []
    counts: dict[str, int] = {}
    for message in messages:
        ident = message.id
        while ident in given or (ident != message.id and ident in seen):
            counts[message.id] = counts.get(message.id, 1) + 1
            ident = f"{message.id}-{counts[message.id]}"
        given.add(ident)
        unique.append(message if ident == message.id else replace(message, id=ident))
    return unique


class _Placement:
    """Places message after message; one whose parent comes later waits for it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._ids = {message.id for message in messages}
        self._done: set[str] = set()
        self._waiting: dict[str, list[Message]] = {}
        self.placed: list[Message] = []
        self.orphans = 0
        self.cyclic = 0

    def run(self) -> None:
        for message in self._messages:
            if message.parent_id is None or message.parent_id in self._done:
                self._place(message)
            elif message.parent_id not in self._ids:
                self.orphans += 1
                self._place(self._behind_the_last(message))
            else:
                self._waiting.setdefault(message.parent_id, []).append(message)
        self._open_cycles()

    def _place(self, first: Message) -> None:
        """`first` and all that wait for it, in their order."""
        stack = [first]
        while stack:
            message = stack.pop()
            self.placed.append(message)
            self._done.add(message.id)
            stack.extend(reversed(self._waiting.pop(message.id, ())))

    def _open_cycles(self) -> None:
        """What still waits hangs under a cycle each. The cycle's first message in the file is where it is opened."""
        order = {message.id: number for number, message in enumerate(self._messages)}
        for message in self._messages:
            if message.id in self._done:
                continue
            self._open(min(self._cycle_above(message, order), key=lambda ident: order[ident]), order)

    def _cycle_above(self, message: Message, order: dict[str, int]) -> list[str]:
        """Ids of the cycle that the message's ancestors run into."""
        path: dict[str, None] = {}
        ident = message.id
        while ident not in path:
            path[ident] = None
            # Every message that still waits has a parent that still waits.
            ident = self._messages[order[ident]].parent_id or ""
        ids = list(path)
        return ids[ids.index(ident) :]

    def _open(self, ident: str, order: dict[str, int]) -> None:
        self.cyclic += 1
        first = self._messages[order[ident]]
        waiting = self._waiting[first.parent_id or ""]
        waiting.remove(first)
        self._place(self._behind_the_last(first))

    def _behind_the_last(self, message: Message) -> Message:
        return replace(message, parent_id=self.placed[-1].id if self.placed else None)


def _with_known_originals(messages: Sequence[Message], problems: Problems, where: str) -> tuple[Message, ...]:
    ids = {message.id for message in messages}
    lost = sum(1 for message in messages if message.edited_from is not None and message.edited_from not in ids)
    if not lost:
        return tuple(messages)
    problems.add(where, f"{lost} edited messages name an original that is missing")
    return tuple(m if m.edited_from is None or m.edited_from in ids else replace(m, edited_from=None) for m in messages)


def _number(count: int) -> str:
    return "1 message has" if count == 1 else f"{count} messages have"
