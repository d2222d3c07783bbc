"""Numbers as a row of bars, one cell each: text, so that it is the same without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], cells: int) -> str:
    """The last `cells` of the values, none below 0, as high as their share of the largest of these."""
    shown = values[-cells:] if cells > 0 else ()
    largest = max(shown, default=0.0)
    return "".join(_BARS[round(value / largest * (len(_BARS) - 1))] if largest else _BARS[0] for value in shown)
