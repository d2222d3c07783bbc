"""Ways in which terminals say "Enter with a modifier" that Textual 8.2 does not tell from Enter, or gives odd names."""

from __future__ import annotations

from typing import cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys

MODIFY_OTHER_KEYS_NEW_LINE = frozenset({"shift+\r", "\r"})
"""What Textual makes of xterm's modifyOtherKeys forms of shift+enter and alt+enter (`CSI 27;2;13~`, `CSI 27;3;13~`).
A binding cannot name them, so the composer looks at the key itself."""


def tell_alt_enter_from_enter() -> None:
    """Have the legacy form of alt+enter, `ESC CR`, arrive as ctrl+j; left alone it arrives as Enter and would send.

    The table is declared read-only but Textual offers no other way to add a sequence; a test holds this in place.
    """
    sequences = cast("dict[str, tuple[Keys, ...]]", ANSI_SEQUENCES_KEYS)
    sequences["\x1b\r"] = (Keys.ControlJ,)
