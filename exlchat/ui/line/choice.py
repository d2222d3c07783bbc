"""Which of the fronts a terminal can carry. No terminal library here: a start asks before it loads any."""

from __future__ import annotations

import codecs
import os
from typing import TextIO

_CANNOT_MOVE = ("", "dumb", "unknown")


def cannot_move_cursor(term: str | None = None) -> str | None:
    """Why nothing can be painted twice on this terminal, in a few words; `None` where it can."""
    name = (os.environ.get("TERM") if term is None else term) or ""
    if name not in _CANNOT_MOVE:
        return None
    return f"TERM is {name}" if name else "TERM is not set"


def cannot_draw(*streams: TextIO) -> str | None:
    """Why the app cannot be drawn on this terminal, in a few words; `None` where it can.

    Args:
        streams: where it draws. Frames and figures need UTF-8.
    """
    for stream in streams:
        try:
            name = codecs.lookup(stream.encoding or "").name
        except LookupError:
            name = stream.encoding or "unknown"
        if name != "utf-8":
            return f"the terminal takes {name}, not UTF-8"
    return cannot_move_cursor()
