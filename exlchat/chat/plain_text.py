"""One line of Markdown as plain text, for lists: without marks, which may have been cut with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Underscores are text here, as in the transcript.
_MARKDOWN = re.compile(
    r"(?:(?<=\s)|^)#{1,6} |`{3,}[\w+-]*|`+|~~|(?<!\w)\*{2,3}|\*{2,3}(?!\w)"
    r"|(?<![\w*(])\*(?=\w[^*]*(?:\*(?!\w)|…$))|(?<=\w)\*(?![\w*])|\|?:?-{3,}:?\|?"
    r"|!?\[(?=[^\]\n]*\]\()|\]\([^)\s…]*(?:\)|(?=…|$))|(?:(?<=\s)|^)[-*+] \[[ xX]\] |</?think>"
)
"""What is a mark of Markdown, not a word; a link may be cut within its address."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Plain text, and the parts of it that were found, as offsets of their beginnings and ends."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()


def plain(text: str, marks: Sequence[tuple[int, int]] = ()) -> Excerpt:
    """One line of Markdown without its marks; `marks` move with the text."""
    pieces, places, last, taken = [], [], 0, 0
    for found in _MARKDOWN.finditer(text):
        pieces.append(text[last : found.start()])
        last = found.end()
        taken += last - found.start()
        places.append((last, taken))
    shown = "".join((*pieces, text[last:]))

    def moved(at: int) -> int:
        return at - max((gone for end, gone in places if end <= at), default=0)

    return Excerpt(shown, tuple((moved(first), max(moved(end), moved(first))) for first, end in marks))
