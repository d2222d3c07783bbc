"""Whether a text contains one of the keys of a lorebook entry.

Patterns come with cards of strangers and could run for ever, so only those are used whose work is bounded: no repeated
groups, few repetitions, and `*` and `+` up to a hundred characters. All others never match, as broken ones.
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
_MOST_OPTIONAL = 4
_MOST_REPEATED = 1
_BOUNDED = {"*": "{0,100}", "+": "{1,100}"}


def contains_any(text: str, keys: Sequence[str], *, case_sensitive: bool = False, patterns: bool = False) -> bool:
    """Whether `text` contains one of `keys`; an empty key is never contained."""
    if patterns:
        found = (bounded_pattern(key, case_sensitive) for key in keys)
        return any(pattern is not None and pattern.search(text) is not None for pattern in found)
    if case_sensitive:
        return any(key in text for key in keys if key.strip())
    folded = text.casefold()
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
    place = optional = repeated = 0
    while place < len(body):
        token = _TOKEN.match(body, place)
        if token is None:
            return None
        optional += token["times"] == "?"
        repeated += token["times"] in ("*", "+")
        pieces.append(token["bare"] or token["one"] + _BOUNDED.get(token["times"], token["times"]))
        place = token.end()
    if optional > _MOST_OPTIONAL or repeated > _MOST_REPEATED:
        return None
    try:
        return re.compile("".join(pieces), re.IGNORECASE if ignore_case else 0)
    except re.error:
        return None
