"""Untrusted text made safe for a line of the screen, and for the database."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

REPLACEMENT: Final = "\ufffd"
_MOST_NAMED: Final = 3

_BIDI_MARKS: Final = (0x061C, 0x200E, 0x200F)
_BIDI_CONTROLS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE: Final = (
    0x00AD,  # soft hyphen
    0x180E,
    0x200B,  # zero width space
    *range(0x2060, 0x2066),  # word joiner, invisible operators
    *range(0x206A, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0FFF + 1),  # tag characters carry text that no one can see
)
_LINE_SEPARATORS: Final = (0x2028, 0x2029)


def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"}
    table[0x7F] = "\u2421"
    table.update(dict.fromkeys(range(0x80, 0xA0), REPLACEMENT))
    table.update(dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT))
    table.update(dict.fromkeys(_BIDI_CONTROLS, REPLACEMENT))
    table.update(dict.fromkeys(_BIDI_MARKS + _INVISIBLE))
    table.update(dict.fromkeys(_LINE_SEPARATORS, "\n"))
    return table


_VISIBLE: Final = _table()

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


def visible(text: str) -> str:
    r"""`text` with what could act on a reader's program shown: C0 by its picture, C1, bidi controls and surrogates by
    U+FFFD. Invisible characters are removed. Newline, carriage return, tab and the zero-width joiners stay.
    """
    return text.translate(_VISIBLE)


def storable(text: str) -> str:
    """`text` with every lone surrogate, which no UTF-8 file can hold, replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _breaks(character: str) -> bool:
    return character in _BREAKS or unicodedata.category(character) == "Cc"


def did_you_mean(word: str, names: Iterable[str], otherwise: str) -> str:
    """The end of an error about a name that there is not: the nearest, those that have the word in them, or all."""
    known = list(names)
    # Only a mistake needs it.
    import difflib

    nearest = difflib.get_close_matches(word, known, n=1)
    if not nearest and len(word) > 2:
        nearest = [name for name in known if word.casefold() in name][:_MOST_NAMED]
    if nearest:
        return f"did you mean {' or '.join(nearest)}?"
    return f"{otherwise} {one_line(', '.join(known), 180)}"
