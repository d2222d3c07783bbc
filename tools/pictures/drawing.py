"""Rows of a terminal as SVG that fetches nothing: a still picture, and what a film is made of as well."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tools.pictures.cells import Row, Span

CELL = 8.25
"""Width of a cell; all lengths are in the units of the picture."""
LINE = 16
BASELINE = 12
"""Where letters stand, from the top of their row: `_` is still clear of the row below."""
OVER = 0.75
"""How far the highest letters, such as those of frames, reach into the row above."""
MARGIN = 8
BAR = 26
"""Height of the bar with the title."""
_FONT = "13.7px 'DejaVu Sans Mono',Menlo,Consolas,'Liberation Mono',monospace"
"""So large that letters of 0.602 of it are as wide as a cell, and blocks of 1.164 of it as high as a row."""
_GAP = "\N{NO-BREAK SPACE}"
_BLOCKS = "▁▂▃▄▅▆▇█"
"""Eighths of a cell, from its bottom: as letters they would leave seams."""
_SEEN = re.compile(f"[{_BLOCKS}]+|[^ {_BLOCKS}]+(?: {{1,3}}[^ {_BLOCKS}]+)*")
"""What is drawn as one. Four spaces end a text: naming a new place is shorter than drawing them."""


@dataclass
class Inks:
    """Short class names for colours, in the order in which they were met."""

    names: dict[str, str] = field(default_factory=dict)

    def of(self, color: str) -> str:
        """The class that fills with a colour."""
        return self.names.setdefault(color, f"c{len(self.names)}")

    def rules(self) -> str:
        """Style rules of all that were met, and of the letters."""
        fills = "".join(f".{name}{{fill:{color}}}" for color, name in self.names.items())
        return (
            f"text{{font:{_FONT}}}.b{{font-weight:700}}.i{{font-style:italic}}"
            f".u{{text-decoration:underline}}.s{{text-decoration:line-through}}{fills}"
        )


def still(rows: Sequence[Row], title: str) -> str:
    """A picture of one screen in a window."""
    inks = Inks()
    drawn = "".join(
        f'<g transform="translate(0 {number * LINE + BASELINE})">{row_drawn(row, inks)}</g>'
        for number, row in enumerate(rows)
    )
    width, height = screen_size(rows)
    body = f'<g transform="translate({MARGIN} {BAR})">{drawn}</g>'
    return document(
        f"{window(width, height, common_background(rows), title, inks)}{body}",
        size=(width + 2 * MARGIN, height + BAR + MARGIN),
        title=title,
        rules=inks.rules(),
    )


def document(body: str, *, size: tuple[float, float], title: str, rules: str) -> str:
    """A whole file."""
    width, height = (f"{length:g}" for length in size)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{rules}</style>{body}</svg>\n'
    )


def window(width: float, height: float, background: str, title: str, inks: Inks, *, below: int = 0) -> str:
    """The frame around a screen of that size: a bar with a title, and `below` more units of room at the bottom."""
    whole = width + 2 * MARGIN
    quiet = "#8a8f98"
    knobs = "".join(f'<circle cx="{18 + 16 * place}" cy="13" r="5"/>' for place in range(3))
    return (
        f'<rect class="{inks.of(background)}" width="{whole:g}" height="{height + BAR + MARGIN + below:g}" rx="8"/>'
        f'<g class="{inks.of(quiet)}">{knobs}'
        f'<text x="{whole / 2:g}" y="17" text-anchor="middle">{escape(title)}</text></g>'
    )


def screen_size(rows: Sequence[Row]) -> tuple[float, float]:
    """Width and height of a screen in the units of the picture."""
    return max(sum(cell_len(span.text) for span in row) for row in rows) * CELL, len(rows) * LINE


def common_background(rows: Iterable[Row]) -> str:
    """The background that most cells have."""
    cells: Counter[str] = Counter()
    for row in rows:
        for span in row:
            cells[span.background] += cell_len(span.text)
    return cells.most_common(1)[0][0]


def row_drawn(row: Row, inks: Inks) -> str:
    """One row, its left end at 0 and its letters standing on 0."""
    return "".join((*_backgrounds(row, inks), *_texts(row, inks)))


def _backgrounds(row: Row, inks: Inks) -> Iterator[str]:
    at = 0
    for background, spans in groupby(row, lambda span: span.background):
        cells = sum(cell_len(span.text) for span in spans)
        yield _rect(inks.of(background), at, cells, top=-BASELINE, height=LINE)
        at += cells


def _texts(row: Row, inks: Inks) -> Iterator[str]:
    at = 0
    for span in row:
        for place, text in _pieces(span):
            cells = cell_len(text)
            if text[0] in _BLOCKS:
                yield from _blocks(text, at + place, inks.of(span.color))
                continue
            # The letters of any font get the places of the cells.
            length = f' textLength="{cells * CELL:g}"' if cells > 1 else ""
            x = f' x="{(at + place) * CELL:g}"' if at + place else ""
            shown = escape(text, quote=False).replace(" ", _GAP)
            yield f'<text class="{_classes(span, inks)}"{x}{length}>{shown}</text>'
        at += cell_len(span.text)


def _blocks(text: str, at: int, ink: str) -> Iterator[str]:
    for block, run in groupby(text):
        cells = len(list(run))
        height = LINE * (_BLOCKS.index(block) + 1) / 8
        yield _rect(ink, at, cells, top=LINE - BASELINE - height, height=height)
        at += cells


def _rect(ink: str, at: int, cells: int, *, top: float, height: float) -> str:
    x = f' x="{at * CELL:g}"' if at else ""
    size = f'width="{cells * CELL:g}" height="{height:g}"'
    return f'<rect class="{ink}"{x} y="{top:g}" {size} shape-rendering="crispEdges"/>'


def _pieces(span: Span) -> Iterator[tuple[int, str]]:
    """The parts of a text that have something to be seen, with the cells before each."""
    if span.underline or span.strike:
        yield 0, span.text
        return
    for found in _SEEN.finditer(span.text):
        yield cell_len(span.text[: found.start()]), found[0]


def _classes(span: Span, inks: Inks) -> str:
    marks = {"b": span.bold, "i": span.italic, "u": span.underline, "s": span.strike}
    return " ".join([inks.of(span.color), *(name for name, given in marks.items() if given)])
