"""Whether what was said calls for an entry of a lorebook."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from exlchat.chat.personas.decorators import Decorators, split_decorators
from exlchat.chat.personas.lore_patterns import Pattern, PatternSearch, bare_pattern, pattern_of

if TYPE_CHECKING:
    from exlchat.chat.personas.lorebook import Lorebook, LoreEntry


USUAL_SCAN_DEPTH = 4
"""Messages that are looked through where a lorebook does not say how many."""

SCANNED_CHARACTERS = 20_000
"""Of what was said last; longer messages are looked through from there on."""

MOST_LOOKED_FOR = 200_000
"""Keys in one turn, which is a second or two; a large lorebook has some thousands."""

_MARK = "\x01"


@dataclass(frozen=True, slots=True)
class ScannedTexts:
    """A conversation, as entries ask for it.

    Args:
        texts: oldest first.
        names: of who said each text; empty where nobody asks.
        told_before: places of entries that were told on this branch, seen or not.
        answers: how many answers there are; `None` ignores the decorators that count them.
        greeting: which greeting was taken, 0 the first; `None` ignores the decorators that ask.
    """

    texts: Sequence[str]
    names: Sequence[str] = ()
    told_before: Collection[int] = ()
    answers: int | None = None
    greeting: int | None = None


class Scan:
    def __init__(self, lorebook: Lorebook, said: ScannedTexts) -> None:
        self._lorebook = lorebook
        self._said = said
        self._others: tuple[str, ...] = ()
        self._texts: dict[int, str] = {}
        self._found: dict[int, frozenset[str]] = {}
        self._search = PatternSearch()
        self._patterns: frozenset[str] | None = None
        self._left = MOST_LOOKED_FOR

    def also_through(self, texts: Sequence[str]) -> None:
        """Texts of entries, which are looked through whatever the depth, in the place of those before."""
        self._others = tuple(texts)
        self._texts.clear()
        self._found.clear()

    def calls(self, place: int, decorators: Decorators) -> bool:
        """Whether the entry at `place` is called for.

        Raises:
            ChildError: its patterns cannot be looked for.
        """
        entry = self._lorebook.entries[place]
        if not entry.enabled or decorators.activate:
            return entry.enabled
        if decorators.dont_activate or not self._allowed(place, decorators):
            return False
        depth = self._depth(entry, decorators)
        # The third specification leaves these to keys that are no patterns.
        texts_only = not entry.use_regex
        if texts_only and any(self._has(entry, key, depth) for key in decorators.exclude_keys):
            return False
        kept = decorators.keep_activate_after_match and place in self._said.told_before
        if kept or not all(any(self._has(entry, key, depth) for key in keys) for keys in decorators.additional_keys):
            return kept
        if entry.constant:
            return True
        selective = entry.selective and bool(entry.secondary_keys) and texts_only
        return any(self._has(entry, key, depth) for key in entry.keys) and (
            not selective or self._has_second(entry, depth)
        )

    def _allowed(self, place: int, decorators: Decorators) -> bool:
        said = self._said
        if len(said.texts) < self._lorebook.entries[place].delay:
            return False
        if decorators.dont_activate_after_match and place in said.told_before:
            return False
        if said.answers is not None:
            if decorators.only_after is not None and said.answers < decorators.only_after:
                return False
            if decorators.only_every and said.answers % decorators.only_every:
                return False
        asked = decorators.is_greeting
        return asked is None or said.greeting is None or asked == said.greeting

    def _depth(self, entry: LoreEntry, decorators: Decorators) -> int:
        given = (decorators.scan_depth, entry.scan_depth, self._lorebook.scan_depth)
        wanted = next((depth for depth in given if depth is not None), USUAL_SCAN_DEPTH)
        return min(wanted, len(self._said.texts))

    def _has_second(self, entry: LoreEntry, depth: int) -> bool:
        found = [self._has(entry, key, depth) for key in entry.secondary_keys]
        match entry.selective_logic:
            case "and_any":
                return any(found)
            case "and_all":
                return all(found)
            case "not_any":
                return not any(found)
            case "not_all":
                return not all(found)

    def _has(self, entry: LoreEntry, key: str, depth: int) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        pattern = key_pattern(entry, key)
        if pattern is not None:
            return pattern.problem is None and pattern.python in self._found_at(depth)
        return contains_key(
            self._text(depth), key, case_sensitive=entry.case_sensitive, whole_words=entry.match_whole_words
        )

    def _text(self, depth: int) -> str:
        if depth not in self._texts:
            texts = self._said.texts[len(self._said.texts) - depth :]
            self._texts[depth] = "\n".join([*texts, *self._others])[-SCANNED_CHARACTERS:]
        return self._texts[depth]

    def _found_at(self, depth: int) -> frozenset[str]:
        """The patterns of the whole lorebook that are found, asked for at once."""
        if self._patterns is None:
            self._patterns = patterns_of(self._lorebook)
        if depth not in self._found:
            self._found[depth] = self._search.found(self._patterns, self._marked(depth))
        return self._found[depth]

    def _marked(self, depth: int) -> str:
        """The text that patterns are written for: as SillyTavern has it, the newest message first, and each behind a
        sign of its own and the name of who said it.
        """
        said = self._said
        named = zip(said.names, said.texts, strict=True) if said.names else ()
        texts = [f"{name}: {text}" for name, text in named] or list(said.texts)
        newest = texts[len(texts) - depth :][::-1]
        return "\n".join(f"{_MARK}{text}" for text in [*newest, *self._others])[:SCANNED_CHARACTERS]


def key_pattern(entry: LoreEntry, key: str) -> Pattern | None:
    """The pattern that a key of an entry is; `None` for a plain text."""
    return bare_pattern(key, case_sensitive=entry.case_sensitive) if entry.use_regex else pattern_of(key.strip())


def patterns_of(lorebook: Lorebook) -> frozenset[str]:
    return frozenset(
        pattern.python
        for entry in lorebook.entries
        for key in (*entry.keys, *entry.secondary_keys, *_decorator_keys(entry))
        if (pattern := key_pattern(entry, key)) is not None and pattern.problem is None
    )


def _decorator_keys(entry: LoreEntry) -> list[str]:
    decorators, _ = split_decorators(entry.content)
    return [key for keys in (*decorators.additional_keys, decorators.exclude_keys) for key in keys]


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
