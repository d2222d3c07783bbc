"""What an empty conversation shows: a horizon, and what to know in three lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.color import Color, Gradient
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import RenderResult

_HORIZON = 46
_SUN = "▁▂▃▄▅▆▇█▇▆▅▄▃▂▁"


class Welcome(Widget):
    """The first light over the horizon, with the lines under it; smaller terminals get the lines only."""

    lines: reactive[tuple[str, ...]] = reactive((), layout=True)

    def render(self) -> RenderResult:
        """Centred by the style sheet; wraps where it must."""
        text = Content("\n").join([Content(line) for line in self.lines])
        if self.size.width < _HORIZON + 8 or self.size.height < len(self.lines) + 6:
            return text
        return Content("\n").join([*self._horizon(), Content(""), text])

    def _horizon(self) -> list[Content]:
        colors = self.app.theme_variables
        dark, warm, bright = (Color.parse(colors[name]) for name in ("line", "accent", "primary"))
        sky = Gradient((0.0, dark), (0.3, warm), (0.5, bright), (0.7, warm), (1.0, dark))
        sun = _row(_SUN.center(_HORIZON), sky)
        land = _row("━" * _HORIZON, sky)
        return [sun, land, Content.styled("e x l c h a t".center(_HORIZON), "$quiet")]


def _row(characters: str, sky: Gradient) -> Content:
    last = max(1, len(characters) - 1)
    return Content.assemble(
        *(Content.styled(mark, sky.get_color(index / last).hex) for index, mark in enumerate(characters))
    )


def welcome_lines(model: str, *, is_guide: bool) -> Sequence[str]:
    """The three lines: what this is, how to stop and quit, how to come to a real model."""
    if is_guide:
        first = "This is the guide, a tiny model that knows exlchat and little else. Ask it how things work."
        last = "For a real model: exlchat MODEL_DIR, a folder with an EXL2 or safetensors Llama model."
    else:
        first = f"You are talking to {model}." if model else "No model is loaded."
        last = "For another model: exlchat MODEL_DIR. For the guide: exlchat guide."
    return (first, "Esc stops an answer, ctrl+q quits, F1 shows keys and commands.", last)
