"""Ways in which terminals say "Enter with a modifier" that Textual 8.2 does not tell from Enter, or gives odd names."""

from __future__ import annotations

from typing import cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys

NEW_LINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j", "shift+\r", "\r")
"""Keys of the new line as Textual names them. `shift+\\r` and `\\r` are what it makes of xterm's modifyOtherKeys forms
of shift+enter and alt+enter (`CSI 27;2;13~`, `CSI 27;3;13~`)."""


def tell_alt_enter_from_enter() -> None:
    """Have the legacy form of alt+enter, `ESC CR`, arrive as ctrl+j; left alone it arrives as Enter and would send.

    The table is declared read-only but Textual offers no other way to add a sequence; a test holds this in place.
    """
    sequences = cast("dict[str, tuple[Keys, ...]]", ANSI_SEQUENCES_KEYS)
    sequences["\x1b\r"] = (Keys.ControlJ,)
