"""Whether a text contains one of the keys of a lorebook entry.

Patterns come with cards of strangers and could run for ever, so only those are used whose work is bounded: no
repeated groups, one `*` or `+`, up to a hundred characters, and few ways to read the same text. All others never
match, as broken ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_SLASHED = re.compile(r"/(?P<body>.+)/(?P<flags>[a-z]*)", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<one>\\[dDsSwW.*+?()\[\]{}|^$/\\-]|\[\^?[^\[\]\\]+\]|[^\\\[\](){}|*+?^$])(?P<times>[*+?]?)"
    r"|(?P<bare>\\[bB]|[|^$]|\(\?:|\(|\)(?![*+?{]))"
)
_LONGEST = 500
_MOST_WAYS = 64
_MOST_WAYS_REPEATED = 4
"""Ways to read a text: two for each `?`, and for each group as many as it has alternatives, all multiplied."""

_PATTERN_CHARACTERS = 4_000
_BOUNDED = {"*": "{0,100}", "+": "{1,100}"}


def contains_any(text: str, keys: Sequence[str], *, case_sensitive: bool = False, patterns: bool = False) -> bool:
    """Whether `text` contains one of `keys`; an empty key is never contained."""
    if patterns:
        found = (bounded_pattern(key, case_sensitive) for key in keys)
        end = text[-_PATTERN_CHARACTERS:]
        return any(pattern is not None and pattern.search(end) is not None for pattern in found)
    if case_sensitive:
        return any(key in text for key in keys if key.strip())
    folded = _folded(text)
    return any(key.casefold() in folded for key in keys if key.strip())


@lru_cache(maxsize=4096)
def bounded_pattern(key: str, case_sensitive: bool = False) -> re.Pattern[str] | None:
    """The pattern that `key` writes, as `dragon.*queen` or `/dragon/i`; `None` if it is broken or could run long."""
    slashed = _SLASHED.fullmatch(key)
    body = slashed["body"] if slashed else key
    ignore_case = "i" in slashed["flags"] if slashed else not case_sensitive
    if not body.strip() or len(body) > _LONGEST:
        return None
    pieces: list[str] = []
    groups = [1]
    ways, place, repeated = 1, 0, 0
    while place < len(body):
        token = _TOKEN.match(body, place)
        if token is None:
            return None
        ways *= 2 if token["times"] == "?" else 1
        repeated += token["times"] in ("*", "+")
        match token["bare"]:
            case "(" | "(?:":
                groups.append(1)
            case "|":
                groups[-1] += 1
            case ")" if len(groups) > 1:
                ways *= groups.pop()
        pieces.append(token["bare"] or token["one"] + _BOUNDED.get(token["times"], token["times"]))
        place = token.end()
    if repeated > 1 or ways > (_MOST_WAYS_REPEATED if repeated else _MOST_WAYS):
        return None
    try:
        return re.compile("".join(pieces), re.IGNORECASE if ignore_case else 0)
    except re.error:
        return None


@lru_cache(maxsize=8)
def _folded(text: str) -> str:
    return text.casefold()
