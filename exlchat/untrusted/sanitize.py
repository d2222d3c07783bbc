"""Text from a model or a file is untrusted: what could steer a terminal or hide from the eye never reaches it.

Every rule here looks at one character alone (`printable`) or at one finished line (`stray_joiners`),
so that text which arrives in pieces gives the same result as text which arrives whole.
"""

from __future__ import annotations

import re
from typing import Final

from exlchat.untrusted.text import visible

TAB_STOP: Final = 4

PRINTABLE_LINE: Final = (
    r"[^\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e0fff]*"
)
"""Matches a line that `printable` leaves as it is, without tabs: for one-line fields, which draw what they hold."""
_EMOJI: Final = "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
_STRAY_JOINER: Final = re.compile(f"(?<![{_EMOJI}])\u200d|\u200d(?![{_EMOJI}])")


def printable(text: str) -> str:
    r"""Replace what could act on a terminal: C0 by its picture, C1, bidi controls and surrogates by U+FFFD.

    Invisible characters are removed. Newline, carriage return, tab and the zero-width joiners stay.
    """
    return visible(text)


def stray_joiners(text: str) -> list[int]:
    """Positions of the zero-width joiners in a line that do not join two emoji; they are not to be shown.

    Rich counts the character after any joiner as zero cells wide, which is right for emoji alone;
    between letters it would push the rest of the line out of place.
    """
    return [match.start() for match in _STRAY_JOINER.finditer(text)]


def expand_tabs(text: str) -> str:
    """Replace tabs by spaces up to the next multiple of four characters."""
    return text.expandtabs(TAB_STOP) if "\t" in text else text


def normalize_newlines(text: str) -> str:
    r"""Make every line end in "\n". The caller keeps back a last "\r" that may be half of "\r\n"."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
