"""What an empty conversation shows: a horizon, and what to know in three lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual.color import Color, Gradient
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.app import RenderResult

    from exlchat.app.keys.keymap import Keymap

_HORIZON_CELLS = 46
_SUN_CELLS = 14
_SUN_ROWS = 2
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Welcome(Widget):
    """The first light over the horizon, with the lines under it; smaller terminals get the lines only."""

    lines: reactive[tuple[str, ...]] = reactive((), layout=True)

    def render(self) -> RenderResult:
        text = Content("\n").join([Content(line) for line in self.lines])
        if self.size.width < _HORIZON_CELLS + 8 or self.size.height < len(self.lines) + 8:
            return text
        return Content("\n").join([*self._horizon(), Content(""), Content("e x l c h a t"), Content(""), text])

    def _horizon(self) -> list[Content]:
        colors = self.app.theme_variables
        dark, warm, bright = (Color.parse(colors[name]) for name in ("line", "glow", "sun"))
        sun = [Content.styled(row, bright.hex) for row in _sun()]
        sky = Gradient((0.0, dark), (0.3, warm), (0.5, bright), (0.7, warm), (1.0, dark))
        cells = (Content.styled("━", sky.get_color(at / (_HORIZON_CELLS - 1)).hex) for at in range(_HORIZON_CELLS))
        return [*sun, Content.assemble(*cells)]


def _sun() -> list[str]:
    """The upper half of an ellipse in eighths of a row, top row first."""
    rows = []
    for row in range(_SUN_ROWS - 1, -1, -1):
        cells = ""
        for cell in range(_SUN_CELLS):
            across = (cell + 0.5) * 2 / _SUN_CELLS - 1
            height = _SUN_ROWS * math.sqrt(1 - across * across)
            cells += _EIGHTHS[round(8 * min(1.0, max(0.0, height - row)))]
        rows.append(cells)
    return rows


def welcome_keys(keys: Keymap) -> str:
    stop, leave, tell = (_shown(keys.keys(one)[0]) for one in ("stop", "quit", "help"))
    return f"{stop} stops an answer, {leave} quits, {tell} shows keys and commands."


def _shown(key: str) -> str:
    return "Esc" if key == "escape" else key.upper() if key[1:].isdigit() else key
