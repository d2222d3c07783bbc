"""A character's picture in half blocks: two pixels to a cell, the upper in the text's colour, the lower behind it."""

from __future__ import annotations

import io
from pathlib import Path

from textual.color import Color
from textual.content import Content
from textual.style import Style

from exlchat.untrusted import files
from exlchat.untrusted.files import UntrustedFileError

COLUMNS, ROWS = 16, 8
"""Cells: nearly square, as most pictures of cards are not wider than high."""
_LARGEST_FILE = 30_000_000
_MOST_PIXELS = 40_000_000
_UNREADABLE = "its picture cannot be read"


class AvatarError(Exception):
    """There is no picture to be shown: why, in a few words."""


def avatar(file: Path, background: Color) -> Content:
    """The picture of a PNG file, as it fits into `COLUMNS` x `ROWS` cells.

    Args:
        background: of what shines through.

    Raises:
        AvatarError: it is no picture, or too large a one.
    """
    # Takes 30 ms, which nobody else waits for.
    from PIL import Image

    try:
        data = files.read_bytes(file, largest=_LARGEST_FILE, kind="picture")
        with Image.open(io.BytesIO(data), formats=("PNG",)) as found:
            if found.width * found.height > _MOST_PIXELS:
                raise AvatarError(f"its picture has {found.width} x {found.height} pixels, too many to be shown")
            found.draft("RGB", (COLUMNS * 4, ROWS * 8))
            picture = found.convert("RGBA")
    except UntrustedFileError as error:
        raise AvatarError(str(error)) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise AvatarError(_UNREADABLE) from None
    picture.thumbnail((COLUMNS, 2 * ROWS))
    # In whole cells.
    height = picture.height + picture.height % 2
    flat = Image.new("RGBA", (picture.width, height), (*background.rgb, 255))
    flat.alpha_composite(picture)
    pixels = flat.convert("RGB").tobytes()

    def color(column: int, row: int) -> Color:
        at = 3 * (row * picture.width + column)
        return Color(pixels[at], pixels[at + 1], pixels[at + 2])

    lines = [
        Content.assemble(
            *(
                Content.styled("▀", Style(foreground=color(column, row), background=color(column, row + 1)))
                for column in range(picture.width)
            )
        )
        for row in range(0, height, 2)
    ]
    return Content("\n").join(lines)
