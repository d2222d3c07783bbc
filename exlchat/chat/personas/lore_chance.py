"""Chance in a lorebook: which entry of a group is told, and whether one with a probability is.

Drawn from the seed of the conversation's persona, so that the same conversation is told the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence

from exlchat.chat.personas.lorebook import ALWAYS, LoreEntry

Draw = Callable[[str], float]
"""What chance gives for a name, from 0 on and below 1; the same for the same name."""


def draw_of(seed: int, messages: int) -> Draw:
    """Chance at one place of a conversation: behind so many messages."""

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
