"""Styled text to lines of a given width in terminal cells."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells, split_graphemes
from rich.segment import Segment

from exlchat.untrusted.sanitize import TAB_STOP, expand_tabs, stray_joiners

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.style import Style

Piece = tuple[str, "Style"]
Line = list[Segment]

_WIDE: Final = (
    "\u1100-\u115f\u2e80-\u3000\u3003-\u3007\u3012-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\U00020000-\U0003fffd"
)
_CLOSING: Final = "、。，．！？：；）」』】〉》〕］｝"
# A line may break after white space, and between wide characters (but not before closing punctuation).
_WORD: Final = re.compile(rf"[{_WIDE}][{_CLOSING}]*\s*|[^\s{_WIDE}]+\s*|\s+")


def wrap(pieces: Iterable[Piece], width: int, *, words: bool = True) -> list[Line]:
    """Break styled text at newlines and where it exceeds `width` cells (1 or more).

    Between words if there are any, else between characters; `words=False` breaks between characters only and keeps all
    white space. White space at a break between words is dropped. There is always at least one line.
    """
    result: list[Line] = []
    for line in split_lines(pieces):
        text = "".join(part for part, _ in line)
        if cell_len(text) <= width:
            result.append([Segment(part, style) for part, style in line])
        else:
            result += _slices(line, _breaks(text, width) if words else _chops(text, width))
    return result


def split_lines(pieces: Iterable[Piece]) -> list[list[Piece]]:
    lines: list[list[Piece]] = [[]]
    for text, style in pieces:
        first, *rest = text.split("\n")
        if first:
            lines[-1].append((first, style))
        lines.extend([(part, style)] if part else [] for part in rest)
    return [_tidy_line(line) for line in lines]


def _tidy_line(line: list[Piece]) -> list[Piece]:
    """Make the widths of a line's characters certain: no tabs, no stray joiners, no emoji cut by a change of style."""
    text = "".join(part for part, _ in line)
    if "\u200d" in text or "\ufe0f" in text:
        line = _whole_graphemes(line, text)
    if "\t" not in text:
        return line
    column = 0
    result: list[Piece] = []
    for part, style in line:
        expanded = expand_tabs(" " * (column % TAB_STOP) + part)[column % TAB_STOP :]
        column += len(expanded)
        result.append((expanded, style))
    return result


def _whole_graphemes(line: list[Piece], text: str) -> list[Piece]:
    styles = [style for part, style in line for _ in part]
    stray = set(stray_joiners(text))
    kept = [index for index in range(len(text)) if index not in stray]
    text = "".join(text[index] for index in kept)
    spans, _ = split_graphemes(text)
    return [(text[start:end], styles[kept[start]]) for start, end, _ in spans]


def _chops(text: str, width: int) -> list[tuple[int, int]]:
    ends = list(accumulate(map(len, chop_cells(text, width))))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _breaks(text: str, width: int) -> list[tuple[int, int]]:
    """Start and end of each line, in characters; the white space between them belongs to none."""
    ranges: list[tuple[int, int]] = []
    start = end = used = 0
    ascii_only = text.isascii()
    for match in _WORD.finditer(text):
        word = match.group()
        body = word.rstrip()
        size = len(body) if ascii_only else cell_len(body)
        if used + size > width and body:
            if end > start:
                ranges.append((start, end))
            start, used = match.start(), 0
            if size > width:
                chops = _chops(body, width)
                ranges += [(start + left, start + right) for left, right in chops[:-1]]
                left, right = chops[-1]
                start, size = start + left, cell_len(body[left:right])
        if body:
            end = match.start() + len(body)
        used += size + len(word) - len(body)
    if end > start or not ranges:
        ranges.append((start, end))
    return ranges


def _slices(line: Sequence[Piece], ranges: Iterable[tuple[int, int]]) -> list[Line]:
    ends = list(accumulate(len(text) for text, _ in line))
    result: list[Line] = []
    for start, end in ranges:
        cut: Line = []
        for index in range(bisect_right(ends, start), len(line)):
            text, style = line[index]
            offset = ends[index] - len(text)
            if offset >= end:
                break
            cut.append(Segment(text[max(start - offset, 0) : end - offset], style))
        result.append(cut)
    return result
