"""Whether a plain key of a lorebook entry is in a text; keys that are patterns are of `lore_patterns`."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
"""What is part of a word in JavaScript, whose rule SillyTavern has: an é or a kana is none."""

_RUN = re.compile("[0-9A-Za-z_]+")
_MOST_PLACES = 200
"""At which a key with other characters is looked at; a text of nothing else would take a while."""


def contains_key(text: str, key: str, *, case_sensitive: bool = False, whole_words: bool = False) -> bool:
    """Whether `key` is in `text`; an empty one never is.

    Args:
        text: where it is looked for.
        key: spaces around it do not count.
        case_sensitive: whether letters are compared as they are.
        whole_words: whether it must stand alone. As in SillyTavern, only a key of one word must.
    """
    wanted = key.strip()
    if not case_sensitive:
        wanted, text = wanted.lower(), _lower(text)
    if not wanted:
        return False
    if not whole_words or len(wanted.split()) > 1:
        return wanted in text
    if _WORD.issuperset(wanted):
        return wanted in _words(text)
    place = text.find(wanted)
    for _ in range(_MOST_PLACES):
        end = place + len(wanted)
        if place < 0 or _alone(text[max(place - 1, 0) : place] + text[end : end + 1]):
            break
        place = text.find(wanted, place + 1)
    else:
        return False
    return place >= 0


def _alone(neighbours: str) -> bool:
    return _WORD.isdisjoint(neighbours)


@lru_cache(maxsize=8)
def _lower(text: str) -> str:
    return text.lower()


@lru_cache(maxsize=8)
def _words(text: str) -> frozenset[str]:
    return frozenset(_RUN.findall(text))
