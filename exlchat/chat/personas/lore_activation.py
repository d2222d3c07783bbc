"""Which entries of a lorebook are told: a function of what was said alone, which only ever adds something at the end.

Apart from the values of `lorebook`, because no start needs it.
Chance is drawn from the seed of the conversation's persona, so that the same conversation is told the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence

from exlchat.chat.personas.decorators import Decorators, split_decorators
from exlchat.chat.personas.lore_calls import Scan, ScannedTexts
from exlchat.chat.personas.lorebook import ALWAYS, Lore, Lorebook, LoreEntry

_MOST_PASSES = 8


def triggered(
    lorebook: Lorebook,
    texts: Sequence[str],
    already: Collection[int] = (),
    *,
    names: Sequence[str] = (),
    count_tokens: Callable[[str], int] | None = None,
    told_before: Collection[int] = (),
    answers: int | None = None,
    greeting: int | None = None,
    seed: int = 0,
) -> tuple[Lore, ...]:
    """The entries to tell with the last message, before it is answered, in the order in which they are told.

    Args:
        lorebook: frozen with the persona, so that places in it keep their meaning.
        texts: of the branch, oldest first, as they were written (without lore).
        already: places of entries that stand in what the model sees; they are not told again.
        names: of who said each of `texts`, for patterns that ask; empty where nobody knows.
        count_tokens: tokens of a text; needed only where there is a budget.
        told_before: places of entries that were told on this branch, seen or not.
        answers: how many answers there are, for the decorators that count them; `None` ignores these.
        greeting: which greeting was taken, 0 the first; `None` ignores the decorators that ask.
        seed: decides what chance gives.

    Raises:
        ValueError: the lorebook has a token budget and there is no way to count.
        ChildError: keys that are patterns cannot be looked for.
    """
    if lorebook.token_budget is not None and count_tokens is None:
        raise ValueError("a lorebook with a token budget needs a way to count tokens")
    said = ScannedTexts(texts, names, frozenset(told_before), answers, greeting)
    split = [split_decorators(entry.content) for entry in lorebook.entries]
    # A place that a damaged note names may be none.
    told = [place for place in already if place < len(split)]
    found = {
        place: Lore(place, split[place][1], lorebook.entries[place].position)
        for place in _called(lorebook, said, split, told, draw_of(seed, len(texts)))
    }
    kept = _within_budget(lorebook, found, told, split, count_tokens)
    return tuple(sorted(kept, key=lambda lore: (lorebook.entries[lore.index].insertion_order, lore.index)))


def _called(
    lorebook: Lorebook, said: ScannedTexts, split: Sequence[tuple[Decorators, str]], told: Collection[int], draw: Draw
) -> list[int]:
    """Places of the entries that are called for, by what was said or by each other, and that chance does not drop."""
    entries = lorebook.entries
    out = {place for place, (_, text) in enumerate(split) if not text} | set(told)
    levels = sorted({entry.delay_until_recursion for entry in entries} - {0})
    level = levels.pop(0) if levels else 0
    found: list[int] = []
    others: list[str] = []
    scan = Scan(lorebook, said)
    for number in range(_MOST_PASSES):
        called = [
            place
            for place, entry in enumerate(entries)
            if place not in out and entry.delay_until_recursion <= (level if number else 0)
            if not (number and lorebook.recursive_scanning and entry.exclude_recursion)
            if scan.calls(place, split[place][0])
        ]
        new = lucky(entries, called, [*told, *found], draw)
        # One that chance has dropped is not drawn for again.
        out.update(called)
        found += new
        calling = [place for place in new if not entries[place].prevent_recursion]
        others += [text for place in calling for text in (split[place][1], *entries[place].hidden_keys)]
        scan.also_through(others)
        if lorebook.recursive_scanning and calling:
            continue
        if not levels:
            break
        level = levels.pop(0)
    return found


def constant_places(lorebook: Lorebook) -> frozenset[int]:
    """The entries that are told whatever is said, and so may stand in the system prompt from the start."""
    return frozenset(
        place
        for place, entry in enumerate(lorebook.entries)
        if entry.enabled and entry.constant and not _may_fail(entry)
    )


def _may_fail(entry: LoreEntry) -> bool:
    return bool(
        entry.probability < ALWAYS
        or entry.delay
        or entry.group
        or entry.delay_until_recursion
        or split_decorators(entry.content)[0].conditional
    )


def _within_budget(
    lorebook: Lorebook,
    found: dict[int, Lore],
    already: Collection[int],
    split: Sequence[tuple[Decorators, str]],
    count_tokens: Callable[[str], int] | None,
) -> list[Lore]:
    """The entries with the highest priority that fit beside those already told, which cannot be taken back."""
    if lorebook.token_budget is None or count_tokens is None:
        return list(found.values())
    entries = lorebook.entries
    counted = (place for place in already if not entries[place].ignore_budget)
    left = lorebook.token_budget - sum(count_tokens(split[place][1]) for place in counted)

    def importance(lore: Lore) -> tuple[float, int]:
        entry = entries[lore.index]
        return (-(entry.insertion_order if entry.priority is None else entry.priority), lore.index)

    kept = []
    for lore in sorted(found.values(), key=importance):
        beside = entries[lore.index].ignore_budget
        size = 0 if beside else count_tokens(lore.text)
        if beside or size <= left:
            left -= size
            kept.append(lore)
    return kept


Draw = Callable[[str], float]
"""What chance gives for a name, from 0 on and below 1; the same for the same name."""


def draw_of(seed: int, messages: int) -> Draw:
    def draw(name: str) -> float:
        digest = hashlib.sha256(f"{seed}\n{messages}\n{name}".encode("utf-8", "surrogatepass")).digest()
        # As many bits as a float holds exactly.
        return (int.from_bytes(digest[:8], "big") >> 11) / 2**53

    return draw


def lucky(entries: Sequence[LoreEntry], called: Sequence[int], told: Collection[int], draw: Draw) -> list[int]:
    """Those of the places `called` that are told: one of each group, and then as their probability falls.

    Args:
        entries: of the lorebook.
        called: places of entries that are called for.
        told: places of entries that are told already; a group that has one of them gets no other.
        draw: chance.
    """
    taken = {group for place in told for group in groups_of(entries[place])}
    members: dict[str, list[int]] = {}
    for place in called:
        for group in groups_of(entries[place]):
            members.setdefault(group, []).append(place)
    lost: set[int] = set()
    for group, places in members.items():
        left = [place for place in places if place not in lost]
        winner = None if group in taken or not left else _winner(entries, left, draw(f"group {group}"))
        lost.update(place for place in left if place != winner)
    return [
        place for place in called if place not in lost and draw(f"entry {place}") * ALWAYS < entries[place].probability
    ]


def groups_of(entry: LoreEntry) -> list[str]:
    """The groups of an entry, which stand in one text with commas between them."""
    return [name for name in re.split(r",\s*", entry.group) if name]


def _winner(entries: Sequence[LoreEntry], members: Sequence[int], drawn: float) -> int:
    first = [place for place in members if entries[place].group_override]
    if first or len(members) == 1:
        return max(first or members, key=lambda place: entries[place].insertion_order)
    left = drawn * sum(_weight(entries[place]) for place in members)
    for place in members:
        left -= _weight(entries[place])
        if left < 0:
            return place
    return members[-1]


def _weight(entry: LoreEntry) -> float:
    return max(entry.group_weight, 0.0)
