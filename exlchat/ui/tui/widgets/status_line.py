"""The status line: model, context used, rate, cached and new tokens, first token; what does not fit is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from exlchat.app.panels.figures import StatusFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import RenderResult

_METER_CELLS = 10
_GAP = "   "


def status_segments(facts: StatusFacts, width: int) -> list[Content]:
    """The parts that fit into `width` cells with gaps between, left to right.

    The meter of the context goes first, then the words beside the figures, then the figures from the last to the first.
    """
    before = [_model(facts), _activity(facts)]
    for meter, words in ((True, True), (False, True), (False, False)):
        figures = [_rate(facts), _prompt_tokens(facts, words=words), _first_token(facts, words=words)]
        parts = [part for part in (*before, _context(facts, meter=meter), *figures) if part is not None]
        if _width(parts) <= width:
            return parts
    while len(parts) > 1 and _width(parts) > width:
        parts.pop()
    return parts


def _width(parts: Sequence[Content]) -> int:
    return sum(part.cell_length for part in parts) + len(_GAP) * (len(parts) - 1)


def _model(facts: StatusFacts) -> Content | None:
    return Content.styled(facts.model, "$foreground") if facts.model else None


def _activity(facts: StatusFacts) -> Content | None:
    if not facts.activity:
        return None
    text = Content.styled(facts.activity, "$quiet-text")
    if facts.fraction is None:
        return text
    percent = Content.styled(f" {facts.fraction:.0%}", "$quiet-text")
    return Content.assemble(_meter(facts.fraction, "$secondary"), " ", text, percent)


def _context(facts: StatusFacts, *, meter: bool) -> Content | None:
    if facts.context_used is None or not facts.context_max:
        return None
    fraction = min(1.0, facts.context_used / facts.context_max)
    color = "$error" if fraction >= 0.95 else "$warning" if fraction >= 0.8 else "$secondary"
    figures = Content.styled(f"{facts.context_used:,}/{facts.context_max:,}", "$quiet-text")
    return Content.assemble(_meter(fraction, color), " ", figures) if meter else figures


def _meter(fraction: float, color: str) -> Content:
    full = round(fraction * _METER_CELLS)
    if fraction > 0:
        full = max(full, 1)
    return Content.assemble(Content.styled("━" * full, color), Content.styled("━" * (_METER_CELLS - full), "$line"))


def _rate(facts: StatusFacts) -> Content | None:
    return None if facts.rate is None else Content.styled(f"{facts.rate:.1f} tok/s", "$quiet-text")


def _prompt_tokens(facts: StatusFacts, *, words: bool) -> Content | None:
    if facts.cached is None or facts.new is None:
        return None
    text = f"{facts.cached:,} cached + {facts.new:,} new" if words else f"{facts.cached:,}+{facts.new:,}"
    return Content.styled(text, "$quiet-text")


def _first_token(facts: StatusFacts, *, words: bool) -> Content | None:
    if facts.first_token is None:
        return None
    return Content.styled(f"{'first token ' if words else ''}{facts.first_token:.2f} s", "$quiet-text")


class StatusLine(Widget):
    facts: reactive[StatusFacts] = reactive(StatusFacts())

    def render(self) -> RenderResult:
        segments = status_segments(self.facts, self.size.width - 2)
        return Content(_GAP).join(segments).truncate(max(1, self.size.width - 1), ellipsis=True)
