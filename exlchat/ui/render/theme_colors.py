"""One colour as themes write it, `#rrggbb` or `ansi_blue`, in the words of the libraries that paint it.

`ansi_...` are the sixteen colours of the terminal, which its owner chose, and `ansi_default`: its text or background.
"""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "ansi_default"
_HUES: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
ANSI_COLORS: Final = (DEFAULT, *(f"ansi_{hue}" for hue in _HUES), *(f"ansi_bright_{hue}" for hue in _HUES))
_IN_PYGMENTS: Final = {
    name: "ansi" + name.removeprefix("ansi_").replace("_", "")
    for name in ANSI_COLORS
    if name not in (DEFAULT, "ansi_white", "ansi_bright_white")
} | {"ansi_white": "ansigray", "ansi_bright_white": "ansiwhite"}
_FROM_PYGMENTS: Final = {theirs: ours.removeprefix("ansi_") for ours, theirs in _IN_PYGMENTS.items()}


def is_ansi(color: str) -> bool:
    """Whether the terminal decides what the colour looks like."""
    return color.startswith("ansi_")


def for_pygments(color: str) -> str:
    """The colour in a style of Pygments; the terminal's own text colour is one that is not inherited."""
    return "noinherit" if color == DEFAULT else _IN_PYGMENTS.get(color, color)


def for_prompt_toolkit(color: str) -> str:
    """The colour in a style of prompt_toolkit, which shares all names but one with Pygments."""
    return "default" if color == DEFAULT else _IN_PYGMENTS.get(color, color)


def for_rich(color: str) -> str:
    """The colour in a style of Rich."""
    return color.removeprefix("ansi_")


def from_pygments(name: str) -> str:
    """A colour that Pygments calls `ansi...`, in a style of Rich."""
    return _FROM_PYGMENTS[name]


def mixed(color: str, share: float, other: str) -> str:
    """`share` (0 to 1) of a colour in another. Of the terminal's colours nobody knows what they mix to: the first."""
    if is_ansi(color) or is_ansi(other):
        return color
    channels = ((int(color[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(one * share + two * (1 - share)):02x}" for one, two in channels)
