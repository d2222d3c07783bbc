"""Screens one after the other as one SVG that moves by itself, in an `<img>` too: style rules only, no script.

Each distinct row of cells is drawn once. Each row of the screen is a strip of the rows that are ever in its place, seen
through a slot as high as one; key frames move the strip. So only what changes takes room in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tools.pictures.cells import Span
from tools.pictures.drawing import (
    BAR,
    BASELINE,
    LINE,
    MARGIN,
    OVER,
    Inks,
    common_background,
    document,
    row_drawn,
    screen_size,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.pictures.cells import Row

_CAPTION = 34
"""Height of the strip with what is being done."""
_CAPTION_COLORS = ("#e8e6e3", "#23262b")
_PITCH = 2
"""From row to row of a strip, in heights of one: what a font draws beyond its row is not seen beside another."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One screen, shown from `at` seconds on until the next one is."""

    at: float
    rows: tuple[Row, ...]
    caption: str


def film(frames: Sequence[Frame], seconds: float, *, title: str, still_at: float) -> str:
    """The frames as an SVG that begins again after `seconds`.

    `still_at` is the time that is shown, and goes on being shown, to those who want nothing to move.
    """
    inks = Inks()
    symbols = _Symbols(inks)
    width, height = screen_size(frames[0].rows)
    rules: list[str] = []
    body: list[str] = []
    for number in range(len(frames[0].rows)):
        turns = _turns([(frame.at, symbols.of(frame.rows[number])) for frame in frames])
        rules.append(_key_frames(f"r{number}", turns, seconds, LINE))
        body.append(_slot(f"r{number}", turns, y=BAR + number * LINE - OVER, size=(width, LINE)))
    captions = _turns([(frame.at, symbols.caption(frame.caption, width)) for frame in frames])
    rules.append(_key_frames("caption", captions, seconds, _CAPTION))
    body.append(_slot("caption", captions, y=BAR + height + MARGIN // 2, size=(width, _CAPTION)))
    background = common_background(frames[len(frames) // 2].rows)
    frame = window(width, height, background, title, inks, below=_CAPTION)
    moving = (
        f".m{{animation:{seconds:g}s step-end infinite}}"
        f"@media(prefers-reduced-motion:reduce){{.m{{animation-play-state:paused;animation-delay:-{still_at:g}s}}}}"
    )
    return document(
        f"<defs>{symbols.drawn()}</defs>{frame}{''.join(body)}",
        size=(width + 2 * MARGIN, height + BAR + MARGIN + _CAPTION),
        title=title,
        rules=f"{inks.rules()}{moving}{''.join(rules)}",
    )


class _Symbols:
    """Each distinct row, drawn once."""

    def __init__(self, inks: Inks) -> None:
        self._inks = inks
        self._names: dict[str, str] = {}

    def of(self, row: Row) -> str:
        """The name of a row's drawing."""
        return self._name(row_drawn(row, self._inks))

    def caption(self, text: str, width: float) -> str:
        """The name of a caption's drawing."""
        color, background = _CAPTION_COLORS
        span = Span(text, color, background)
        return self._name(
            f'<rect class="{self._inks.of(span.background)}" y="-{BASELINE}" width="{width:g}" height="{_CAPTION - 6}" '
            f'rx="5"/><text class="{self._inks.of(span.color)} b" x="{width / 2:g}" y="6" text-anchor="middle">'
            f"{escape(text, quote=False)}</text>"
        )

    def _name(self, drawn: str) -> str:
        return self._names.setdefault(drawn, f"a{len(self._names)}")

    def drawn(self) -> str:
        """All of them."""
        return "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in self._names.items())


def _turns(shown: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """What is shown, and since when, without those that change nothing."""
    turns: list[tuple[float, str]] = []
    for at, name in shown:
        if not turns or turns[-1][1] != name:
            turns.append((at, name))
    return turns


def _strip(turns: Sequence[tuple[float, str]]) -> list[str]:
    """The names in the order of the strip, each once."""
    return list(dict.fromkeys(name for _, name in turns))


def _key_frames(name: str, turns: Sequence[tuple[float, str]], seconds: float, height: float) -> str:
    strip = _strip(turns)
    if len(strip) == 1:
        return ""
    times: dict[int, list[str]] = {}
    for at, shown in turns:
        times.setdefault(strip.index(shown), []).append(f"{100 * at / seconds:.4f}".rstrip("0").rstrip("."))
    stops = "".join(
        f"{','.join(f'{percent}%' for percent in percents)}{{transform:translateY(-{place * height * _PITCH:g}px)}}"
        for place, percents in times.items()
    )
    return f".{name}{{animation-name:{name}}}@keyframes {name}{{{stops}}}"


def _slot(name: str, turns: Sequence[tuple[float, str]], *, y: float, size: tuple[float, float]) -> str:
    """The window of a strip, in the picture at `y`."""
    width, height = size
    strip = "".join(
        f'<use href="#{shown}" y="{place * height * _PITCH + BASELINE + OVER:g}"/>'
        for place, shown in enumerate(_strip(turns))
    )
    return (
        f'<svg x="{MARGIN}" y="{y:g}" width="{width:g}" height="{height + OVER:g}" overflow="hidden">'
        f'<g class="m {name}">{strip}</g></svg>'
    )
