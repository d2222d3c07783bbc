"""Untrusted text made safe for a line of the screen, and for the database."""

from __future__ import annotations

import unicodedata

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BREAKS = frozenset("\u2028\u2029")


def one_line(text: str, limit: int = 200) -> str:
    """`text` as one line of at most `limit` characters, without control and bidi characters.

    White space runs become one space. A longer text ends in "…", cut at a word where that costs less than half of it.
    """
    shown = "".join(" " if _breaks(character) else character for character in text if character not in _BIDI)
    line = " ".join(shown.split())
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    at_word = cut.rpartition(" ")[0]
    return (at_word if len(at_word) * 2 > limit else cut).rstrip() + "…"


def storable(text: str) -> str:
    """`text` with every lone surrogate, which no UTF-8 file can hold, replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _breaks(character: str) -> bool:
    return character in _BREAKS or unicodedata.category(character) == "Cc"
