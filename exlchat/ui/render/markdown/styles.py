"""What a rendered text looks like: one Rich style per part, and a Pygments style for code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.style import Style

if TYPE_CHECKING:
    from pygments.style import Style as PygmentsStyle

    from exlchat.config.schema import Underscores

    CodeStyle = str | type[PygmentsStyle]

MIN_WIDTH: Final = 8
"""Cells below which nested blocks are no longer indented, so that text never leaves the screen."""

TARGET: Final = "target"
"""Under this name the `meta` of a style says where a link leads. It is for the mouse and never reaches the terminal."""
UNFOLDS: Final = "unfolds"
"""The same of the line that stands for hidden code."""


@dataclass(frozen=True)
class TextStyles:
    """Styles by part. All but `text` and `code_block` are laid over the style around them.

    `code_style` is a Pygments style or the name of one; an unknown name is an error when code is first rendered.
    `underscores` is what those around words are.
    """

    text: Style = field(default_factory=Style.null)
    strong: Style = field(default_factory=lambda: Style(bold=True))
    emphasis: Style = field(default_factory=lambda: Style(italic=True))
    strike: Style = field(default_factory=lambda: Style(strike=True))
    code: Style = field(default_factory=Style.null)
    link: Style = field(default_factory=lambda: Style(underline=True))
    address: Style = field(default_factory=lambda: Style(dim=True))
    heading: Style = field(default_factory=lambda: Style(bold=True))
    quote: Style = field(default_factory=Style.null)
    frame: Style = field(default_factory=lambda: Style(dim=True))
    """Rules, table lines and the bar beside a quote."""
    marker: Style = field(default_factory=Style.null)
    table_head: Style = field(default_factory=lambda: Style(bold=True))
    code_block: Style = field(default_factory=Style.null)
    code_label: Style = field(default_factory=lambda: Style(dim=True))
    code_style: CodeStyle = "default"
    underscores: Underscores = "text"
