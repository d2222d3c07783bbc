"""Rows of a terminal as plain values: what stands in them, and in which colours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.color import blend_rgb
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual._context import visible_screen_stack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import App

_DIM = 0.4
"""How far dim text goes to its background."""


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one style; colours as `#rrggbb`."""

    text: str
    color: str
    background: str
    bold: bool = False
    italic: bool = False
    underline: bool = False
    strike: bool = False


Row = tuple[Span, ...]
"""One row of a terminal, from its left edge to its right one."""


def row_of(segments: Iterable[Segment], width: int) -> Row:
    """A row of `width` cells, neighbours of one style put together."""
    spans: list[Span] = []
    for segment in Segment.adjust_line_length(list(segments), width):
        if segment.control or not segment.text:
            continue
        span = _span(segment.text, segment.style or Style.null())
        if spans and replace(spans[-1], text="") == replace(span, text=""):
            spans[-1] = replace(span, text=spans[-1].text + span.text)
        else:
            spans.append(span)
    return tuple(spans)


def plain_row(text: str, like: Row, width: int) -> Row:
    """Text of one style, in the colours that `like` begins with."""
    return (replace(like[0], text=text.ljust(width)),)


def rows_of(app: App[int]) -> tuple[Row, ...]:
    """What the app shows now, what lies behind a half transparent screen with it."""
    width, height = app.size
    visible_screen_stack.set(app._background_screens)
    strips = app.screen._compositor.render_strips()
    return tuple(row_of(strip, width) for strip in strips[:height])


def _span(text: str, style: Style) -> Span:
    theme = SVG_EXPORT_THEME
    color = theme.foreground_color if style.color is None else style.color.get_truecolor(theme)
    background = (
        theme.background_color if style.bgcolor is None else style.bgcolor.get_truecolor(theme, foreground=False)
    )
    if style.reverse:
        color, background = background, color
    if style.dim:
        color = blend_rgb(color, background, _DIM)
    return Span(
        text,
        color.hex,
        background.hex,
        bool(style.bold),
        bool(style.italic),
        bool(style.underline),
        bool(style.strike),
    )
