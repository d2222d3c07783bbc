"""The terminal as it was before the program took it, for an end in which nobody else gives it back."""

from __future__ import annotations

import contextlib
import os
import select
import termios
from typing import Any, Final

APP: Final = (
    "\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?1004l"
    "\x1b[<u\x1b[?1049l\x1b[?25h"
)
"""Undoes what Textual 8.2 asks of a terminal: mouse, pastes, keys, sizes, the other screen, no cursor."""
LINE: Final = "\x1b[<u\x1b[>4m\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[m\r\n"
"""The same for the line mode and prompt_toolkit 3.0."""
_WRITABLE_SECONDS = 0.2


class TerminalState:
    """How lines are edited and echoed on the terminal of `keyboard`; `screen` is where the program draws."""

    def __init__(self, keyboard: int, screen: int, undo: str) -> None:
        """`undo` is what takes back the modes that the program sets on the screen."""
        self._keyboard, self._screen, self._undo = keyboard, screen, undo
        self._attributes: Any = None
        with contextlib.suppress(termios.error, OSError):
            self._attributes = termios.tcgetattr(keyboard)

    def restore(self, *, drawn: bool = True) -> None:
        """As it was; `drawn` is whether it is in the modes of the program. It may have gone.

        What was typed meanwhile, reports of the mouse too, is no input of the shell.
        """
        if self._attributes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcflush(self._keyboard, termios.TCIFLUSH)
                termios.tcsetattr(self._keyboard, termios.TCSANOW, self._attributes)
        with contextlib.suppress(OSError):
            if not drawn:
                return
            # One that is stopped with ctrl+s takes nothing.
            if select.select([], [self._screen], [], _WRITABLE_SECONDS)[1]:
                os.write(self._screen, self._undo.encode("ascii"))
