"""The status line, in words: model, context, speed, what of the prompt was remembered, the wait for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from exlchat.app.panels.figures import StatusFacts
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import RenderResult

_METER_CELLS = 10
_GAP = "   "
_NAME_CELLS = 24
_OWN_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WhoSpeaks:
    """Whose name the line shows, what the open conversation says itself of how it is spoken to; whether it is kept."""

    name: str = ""
    own: tuple[str, ...] = ()
    kept: bool = True


_NOBODY = WhoSpeaks()


def status_segments(facts: StatusFacts, width: int, who: WhoSpeaks = _NOBODY, serving: str = "") -> list[Content]:
    """The parts that fit into `width` cells with gaps between, left to right.

    The meter of the context goes first, then the figures from the last to the first, and before what the conversation
    says itself all but one of that.
    """
    served = Content.styled(serving, "$secondary") if serving else None
    before = (_model(facts), served, _not_kept(who), _name(who), _activity(facts))
    figures = [_rate(facts), _prompt_tokens(facts), _first_token(facts)]
    meter, shown = True, _OWN_SHOWN
    while True:
        parts = [
            part for part in (*before, _context(facts, meter=meter), _own(who, shown), *figures) if part is not None
        ]
        if _width(parts) <= width or len(parts) == 1:
            return parts
        if meter:
            meter = False
        elif figures:
            figures.pop()
        elif shown > 1:
            shown = 1
        else:
            break
    while len(parts) > 1 and _width(parts) > width:
        parts.pop()
    return parts


def _width(parts: Sequence[Content]) -> int:
    return sum(part.cell_length for part in parts) + len(_GAP) * (len(parts) - 1)


def _model(facts: StatusFacts) -> Content | None:
    return Content.styled(facts.model, "$foreground") if facts.model else None


def _name(who: WhoSpeaks) -> Content | None:
    name = printable(one_line(who.name, _NAME_CELLS))
    return Content.styled(name, "$primary") if name else None


def _not_kept(who: WhoSpeaks) -> Content | None:
    return None if who.kept else Content.styled("nothing is kept", "$warning")


def _own(who: WhoSpeaks, shown: int) -> Content | None:
    if not who.own:
        return None
    more = f" and {len(who.own) - shown} more" if len(who.own) > shown else ""
    return Content.styled(f"this conversation: {printable(', '.join(who.own[:shown]))}{more}", "$quiet-text")


def _activity(facts: StatusFacts) -> Content | None:
    if not facts.activity:
        return None
    text = Content.styled(facts.activity, "$quiet-text")
    if facts.fraction is None:
        return text
    percent = Content.styled(f" {facts.fraction:.0%}", "$quiet-text")
    return Content.assemble(_meter(facts.fraction, "$secondary"), " ", text, percent)


def _context(facts: StatusFacts, *, meter: bool) -> Content | None:
    if not facts.context_max:
        return None
    if facts.context_used is None:
        return Content.styled(f"context of {facts.context_max:,}", "$quiet-text")
    fraction = min(1.0, facts.context_used / facts.context_max)
    color = "$error" if fraction >= 0.95 else "$warning" if fraction >= 0.8 else "$secondary"
    figures = Content.styled(f"context {facts.context_used:,} of {facts.context_max:,}", "$quiet-text")
    return Content.assemble(_meter(fraction, color), " ", figures) if meter else figures


def _meter(fraction: float, color: str) -> Content:
    full = round(fraction * _METER_CELLS)
    if fraction > 0:
        full = max(full, 1)
    return Content.assemble(Content.styled("━" * full, color), Content.styled("━" * (_METER_CELLS - full), "$line"))


def _rate(facts: StatusFacts) -> Content | None:
    return None if facts.rate is None else Content.styled(f"{facts.rate:.1f} tokens/s", "$quiet-text")


def _prompt_tokens(facts: StatusFacts) -> Content | None:
    if facts.cached is None or facts.new is None:
        return None
    return Content.styled(f"{facts.cached:,} remembered + {facts.new:,} read", "$quiet-text")


def _first_token(facts: StatusFacts) -> Content | None:
    if facts.first_token is None:
        return None
    return Content.styled(f"began after {facts.first_token:.2f} s", "$quiet-text")


class StatusLine(Widget):
    facts: reactive[StatusFacts] = reactive(StatusFacts())
    who: reactive[WhoSpeaks] = reactive(_NOBODY)
    serving: reactive[str] = reactive("")

    def render(self) -> RenderResult:
        segments = status_segments(self.facts, self.size.width - 2, self.who, self.serving)
        return Content(_GAP).join(segments).truncate(max(1, self.size.width - 1), ellipsis=True)
