"""Keys of lorebook entries that are patterns, as SillyTavern has them: `/pattern/flags`.

They come with cards of strangers, so they are looked for in a process of its own, within bounds of time and memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from exlchat.chat.personas import pattern_search
from exlchat.chat.personas.js_regex import BrokenRegexError, ForeignRegexError, python_pattern
from exlchat.untrusted.child import Child

_FLAGS = frozenset("gimsuy")
_MODULE = "exlchat.chat.personas.pattern_search"
_MEMORY = 256_000_000
_LARGEST = 64_000_000

TURN_SECONDS = 2.0
"""Of processor time for all patterns of a turn."""

_child = Child(_MODULE, seconds=4 * TURN_SECONDS, memory=_MEMORY, largest=_LARGEST)
_too_long: set[str] = set()
"""Patterns that have reached their bound once; they are never tried again."""


@dataclass(frozen=True, slots=True)
class Pattern:
    python: str = ""
    problem: str | None = None


@lru_cache(maxsize=16_384)
def pattern_of(key: str) -> Pattern | None:
    """The pattern that a key writes; `None` for a key that is a plain text.

    As in SillyTavern, that is one without slashes around it, with a bare slash inside, or refused by JavaScript.
    """
    body, slash, flags = key[1:].rpartition("/")
    if not (key.startswith("/") and slash and body) or set(flags) - _FLAGS:
        return None
    if any(char == "/" and (not place or body[place - 1] != "\\") for place, char in enumerate(body)):
        return None
    try:
        return Pattern(python_pattern(body, flags))
    except BrokenRegexError:
        return None
    except ForeignRegexError as error:
        return Pattern(problem=str(error))


@lru_cache(maxsize=16_384)
def bare_pattern(key: str, *, case_sensitive: bool) -> Pattern:
    """The pattern of a key that is one without slashes, as `use_regex` of the third card specification wants it."""
    slashed = pattern_of(key)
    if slashed is not None:
        return slashed
    try:
        return Pattern(python_pattern(key, "" if case_sensitive else "i")) if key else Pattern(problem="empty")
    except BrokenRegexError:
        return Pattern(problem="broken")
    except ForeignRegexError as error:
        return Pattern(problem=str(error))


class PatternSearch:
    """Looks for patterns, for one turn: what all its searches may take is bounded together."""

    def __init__(self) -> None:
        self._left = TURN_SECONDS

    def found(self, patterns: Collection[str], text: str) -> frozenset[str]:
        """Those of `patterns`, in Python's words, that are in `text`. One that takes too long is in none.

        Raises:
            ChildError: the process that looks for them cannot be started, or is lost.
        """
        return self._with((pattern_search.FOUND,), patterns, text)

    def unusable(self, patterns: Collection[str]) -> frozenset[str]:
        """Those that Python refuses after all, or that take too long even where there is nothing to find.

        Raises:
            ChildError: as `found`.
        """
        return self._with((pattern_search.BROKEN, pattern_search.TOO_LONG), patterns, "")

    def _with(self, wanted: tuple[str, ...], patterns: Collection[str], text: str) -> frozenset[str]:
        tried = sorted(set(patterns) - _too_long)
        if not tried or self._left <= 0:
            return frozenset()
        given = _child.ask({"patterns": tried, "text": text, "seconds": self._left})
        self._left -= given["used"]
        answers = dict(zip(tried, given["answers"], strict=True))
        _too_long.update(one for one, answer in answers.items() if answer == pattern_search.TOO_LONG)
        return frozenset(one for one, answer in answers.items() if answer in wanted)
