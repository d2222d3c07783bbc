"""The figures in one line: model, context, rate, cache, who speaks, which branch. What does not fit is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exlchat.app.panels.figures import StatusFacts

_GAP = " · "


def toolbar_text(
    facts: StatusFacts,
    *,
    persona: str | None,
    place: tuple[int, int] | None,
    typed: str,
    width: int,
    own: tuple[str, ...] = (),
) -> str:
    """As much as fits into `width` cells, from the left.

    Args:
        facts: of model and answer.
        persona: name of who speaks, if a persona does.
        own: what the conversation says itself of how it is spoken to, in words.
        typed: of the message that is being typed.
        place: which of how many alternatives the last message with alternatives is.
    """
    shown = ""
    for part in (*_parts(facts, persona, place, typed), *(printable(one) for one in own)):
        longer = f"{shown}{_GAP}{part}" if shown else part
        if cell_len(longer) > width:
            break
        shown = longer
    return shown


def _parts(facts: StatusFacts, persona: str | None, place: tuple[int, int] | None, typed: str) -> Iterator[str]:
    if typed:
        yield typed
    if facts.model:
        yield printable(one_line(facts.model, 40))
    if facts.activity:
        percent = "" if facts.fraction is None else f" {facts.fraction:.0%}"
        yield f"{printable(one_line(facts.activity, 40))}{percent}"
    if facts.context_max:
        used = "" if facts.context_used is None else f"{facts.context_used / facts.context_max:.0%} "
        yield f"context {used}of {_short(facts.context_max)}"
    if facts.rate is not None:
        yield f"{facts.rate:.1f} tokens/s"
    if facts.cached is not None and facts.new is not None and facts.cached + facts.new:
        yield f"{facts.cached / (facts.cached + facts.new):.0%} remembered"
    if persona is not None:
        yield printable(one_line(persona, 24))
    if place is not None:
        yield f"answer {place[0]} of {place[1]}"


def _short(count: int) -> str:
    return f"{count / 1000:.1f}k" if count >= 1000 else str(count)
