"""Messages as numbered lines: of the open conversation, where a text stands in it, and of all its branches."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from exlchat.app.chat.numbered import WHO, about, numbered_back, who_says
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.chat.plain_text import plain
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.untrusted.text import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from exlchat.chat.model import Message
    from exlchat.chat.store.search import SearchHit

MOST: Final = 60
"""How many lines a list has; more would push what was asked off the screen."""
_CELLS: Final = 60
_BEFORE, _AFTER = 30, 50
"""Characters around a place that was found."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of a list, and the parts of it that were looked for, as offsets of their beginnings and ends."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def message_lines(branch: Sequence[Message], places: Mapping[str, tuple[int, int]]) -> list[Listed]:
    """Number, who said it, the first words; which alternative it is, and whether it is pinned or left out.

    Args:
        branch: of the open conversation.
        places: which of how many alternatives messages are, by id.
    """
    return [Listed(f"{_number(number)}  {about(message, places)}") for number, message in numbered_back(branch)[-MOST:]]


def found_lines(branch: Sequence[Message], wanted: str) -> list[Listed]:
    """The messages that have a text, capitals aside: number, the line of the message, and what stands around it."""
    return list(_found(branch, re.compile(re.escape(wanted), re.IGNORECASE)))


def _found(branch: Sequence[Message], wanted: re.Pattern[str]) -> Iterator[Listed]:
    for number, message in numbered_back(branch):
        lines = answer_parts(message).answer.splitlines()
        places = [(row, place) for row, line in enumerate(lines) for place in wanted.finditer(line)]
        if not places:
            continue
        row, first = places[0]
        lead = f"{_number(number)}  {WHO[message.role]}, line {row + 1} of {len(lines)}: "
        around = _around(first)
        more = f" ({len(places)} places)" if len(places) > 1 else ""
        yield Listed(f"{lead}{around.text}{more}", _moved(around.marks, len(lead)))


def _around(place: re.Match[str]) -> Listed:
    line, start, end = place.string, max(place.start() - _BEFORE, 0), place.end() + _AFTER
    before = f"…{_flat(line[start : place.start()])}" if start else _flat(line[: place.start()]).lstrip()
    here = _flat(place[0])
    after = f"{_flat(line[place.end() : end])}{'…' if end < len(line) else ''}".rstrip()
    return Listed(f"{before}{here}{after}", ((len(before), len(before) + len(here)),))


def _flat(text: str) -> str:
    return visible(text).replace("\t", " ")


def branch_lines(
    messages: Sequence[Message], shown: Sequence[Message], *, in_words: bool = False
) -> tuple[list[Listed], int]:
    """All branches, numbered from 1 in the order of the list; at most the last ones, and how many are left out.

    Args:
        messages: of the whole tree.
        shown: the branch that is shown.
        in_words: say the steps to the right in words too: a voice does not read spaces.
    """
    here = {one.id for one in shown}
    tip = shown[-1].id if shown else ""
    lines = []
    for number, one in enumerate(tree_lines(messages, cells=_CELLS), 1):
        message = one.message
        state = ", shown, the end" if message.id == tip else ", shown" if message.id in here else ""
        step = f"step {one.depth}, " if in_words and one.depth else ""
        indent = "" if in_words else "  " * one.depth
        lines.append(Listed(f"{_number(number)}  {indent}{step}{who_says(message)}{state}: {one.text}"))
    return lines[-MOST:], max(len(lines) - MOST, 0)


def hit_lines(hits: Sequence[SearchHit], days: Sequence[str]) -> list[Listed]:
    """What was found in all conversations: number, title, day, and what stands around it; `days` has one of each."""
    lines = []
    for number, (hit, day) in enumerate(zip(hits, days, strict=True), 1):
        who = f", {WHO[hit.role]}" if hit.role is not None else ", title"
        lead = f"{_number(number)}  {one_line(hit.title, 40)} ({day}{who}): "
        there = plain(hit.snippet, hit.marks)
        lines.append(Listed(f"{lead}{there.text}", _moved(there.marks, len(lead))))
    return lines


def day_of(moment: float) -> str:
    """A day as numbers, or that it is none."""
    try:
        return datetime.datetime.fromtimestamp(moment).strftime("%Y-%m-%d")
    except (OverflowError, OSError, ValueError):
        return "long ago"


def _number(number: int) -> str:
    return f"{number:>3}" if number else "   "


def _moved(marks: Sequence[tuple[int, int]], by: int) -> tuple[tuple[int, int], ...]:
    return tuple((start + by, end + by) for start, end in marks)
