"""A pattern together with a length, which the library cannot always intersect.

It looks ahead whether a text can still end well, gives up after so many steps, and takes that for a no: with characters
of several bytes and some thousand of them an answer ended up where nothing could follow. So the length is left out
where the pattern keeps it anyway, and else the pattern is made to keep it.
"""

from __future__ import annotations

import math
import re
import warnings
from re import _parser  # type: ignore[attr-defined]
from typing import Any

# Characters times repetitions. Single bytes of ASCII cost nothing to speak of; with more of these a word of an answer
# was already too much at 9,000, and without repetitions at 5,000. So few characters are never too much.
_MOST_COST = 2_500
_SHORT = 60
# A loop is to have room for a word of a person, before fewer repetitions are allowed.
_ROOM = 16
_FEWER = (64, 32, 16, 8, 4, 2, 1)
_LONGEST = 65_535
# Each is read some hundred times.
_LONGEST_PATTERN = 1_000
_TOKENS = re.compile(
    r"""(?P<escape>\\(?:[pPx]\{[^}]*\}|.))
      | (?P<set>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])
      | (?P<counted>\{(?P<least>\d+)(?P<open>,(?P<most>\d*))?\}\??)
      | (?P<loop>[*+]\??)
      | (?P<group>\(\?[^():<]*[:<]?)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_WIDE = re.compile(r"\\[SWDpPsw]|\[\^|\.|[^\x00-\x7f]")


def held_length(schema: dict[str, Any]) -> dict[str, Any] | None:
    """A schema with `pattern` as the library can hold it, of which less may match; None where it cannot be held.

    The pattern and the bounds are what they must be.
    """
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    pattern = schema["pattern"]
    shortest, longest = _widths(pattern) or (0, math.inf)
    schema = {key: value for key, value in schema.items() if key != "minLength" or shortest < least}
    if most is not None and longest <= most:
        schema = {key: value for key, value in schema.items() if key != "maxLength"}
    elif most is not None and _too_much(pattern, most):
        narrow = _narrowed(pattern, most)
        if narrow is None:
            return None
        schema = {**schema, "pattern": narrow}
        del schema["maxLength"]
    return schema if "minLength" not in schema or not _too_much(pattern, least) else None


def _too_much(pattern: str, length: float) -> bool:
    wide = len(_WIDE.findall(pattern))
    if not wide or (wide == 1 and pattern.startswith("^") and pattern.endswith("$") and ")" not in pattern):
        return False
    counted = [found for found in _TOKENS.finditer(pattern) if found["counted"]]
    if any(int(found["least"]) > 1 and pattern[found.start() - 1] == ")" for found in counted):
        return True
    most = max((int(found["most"] or found["least"]) for found in counted), default=0)
    return length > _SHORT and length * (1 + most) > _MOST_COST


def _narrowed(pattern: str, most: int) -> str | None:
    """The pattern with loops that end, so that its longest text has `most` characters or a little less."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    if not any(found["other"] in ("^", "$") for found in _TOKENS.finditer(pattern)):
        pattern = f"^[\\s\\S]*(?:{pattern})[\\s\\S]*$"
    best: tuple[int, str] | None = None
    for fewer in (_LONGEST, *_FEWER):
        found = _with_longest_loops(pattern, most, fewer)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
        if best is not None and best[0] >= _ROOM:
            break
    return None if best is None else best[1]


def _with_longest_loops(pattern: str, most: int, fewer: int) -> tuple[int, str] | None:
    if _widths(_with_loops(pattern, 1, fewer)) is None:
        return None
    low, high, best = 1, min(most, _LONGEST), None
    while low <= high:
        middle = (low + high) // 2
        narrow = _with_loops(pattern, middle, fewer)
        found = _widths(narrow)
        if found is not None and found[1] <= most:
            best, low = (middle, narrow), middle + 1
        else:
            high = middle - 1
    return best


def _with_loops(pattern: str, most: int, fewer: int) -> str:
    def bounded(found: re.Match[str]) -> str:
        if found["loop"]:
            return f"{{{int(found['loop'][0] == '+')},{most}}}"
        if found["counted"] and found["open"]:
            least = int(found["least"])
            return f"{{{least},{max(least, min(int(found['most'] or most), fewer))}}}"
        return found[0]

    return _TOKENS.sub(bounded, pattern)


def _widths(pattern: str) -> tuple[int, int] | None:
    """Characters of the shortest and the longest text of a pattern; None where that cannot be said."""
    inner = pattern[1:-1]
    if not (pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")) or _is_split(inner):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            low, high = _parser.parse(inner).getwidth()
    except (re.error, RecursionError, OverflowError):
        return None
    return int(low), int(high)


def _is_split(inner: str) -> bool:
    """Whether the ^ in front and the $ behind belong to one alternative only, or others stand between them."""
    depth = 0
    for found in _TOKENS.finditer(inner):
        text = found["other"] or found["group"] or ""
        depth += text.startswith("(") - (text == ")")
        if text in ("^", "$") or (text == "|" and depth == 0):
            return True
    return False
