"""Blocks to lines of styled segments, for one width and one set of styles. No widgets."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from exlchat.ui.render.markdown.blocks import (
    Block,
    Code,
    Heading,
    Inline,
    Item,
    Mark,
    Paragraph,
    Quote,
    Rule,
    TableBlock,
    TextSpan,
    Verbatim,
)
from exlchat.ui.render.markdown.highlight import highlight_line, highlight_lines
from exlchat.ui.render.markdown.styles import MIN_WIDTH, TARGET, UNFOLDS
from exlchat.ui.render.markdown.table import table_lines
from exlchat.ui.render.markdown.wrap import Line, Piece, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.ui.render.markdown.styles import TextStyles

LONG_CODE: Final = 12
"""Lines beyond which code can be folded."""
FOLDED_CODE: Final = 5
"""Lines of folded code that are shown."""


class Renderer:
    """Renders blocks for a width in cells. Equal blocks give equal lines; nothing is remembered but styles.

    `folds`: how long code is unfolded ("z unfolds"), said behind its first lines; "" shows all of it.
    """

    def __init__(self, styles: TextStyles, width: int, folds: str = "") -> None:
        self.styles = styles
        self.width = max(width, MIN_WIDTH)
        self._folds = folds
        self._style = lru_cache(maxsize=256)(self._make_style)

    def quieter(self) -> Renderer:
        return Renderer(replace(self.styles, text=self.styles.text + self.styles.quote), self.width)

    def folding(self, how: str) -> Renderer:
        return Renderer(self.styles, self.width, how)

    def render(self, block: Block, previous: Block | None = None) -> list[Line]:
        """Lines of a top-level block, with the blank line that separates it from the one before."""
        lines = self._lines(block, self.width, self.styles.text)
        return [[], *lines] if previous is not None and needs_gap(previous, block) else lines

    def wrapped(self, text: str, style: Style) -> list[Line]:
        """Text that is no Markdown."""
        return wrap([(text, style)], self.width)

    def code_label(self, code: Code) -> list[Line]:
        return self._label(code, self.width) if code.info else []

    def growing_code(self, lines: Iterable[str], info: str) -> list[Line]:
        return [
            line
            for text in lines
            for line in self._code_line(highlight_line(text, info, self.styles.code_style), self.width)
        ]

    def _lines(self, block: Block, width: int, base: Style) -> list[Line]:
        match block:
            case Paragraph(spans):
                lines = wrap(self._pieces(spans, base), width)
            case Verbatim(text):
                lines = wrap([(text, base)], width)
            case Heading(_, spans):
                lines = wrap(self._pieces(spans, base + self.styles.heading), width)
            case Code():
                lines = self._code(block, width)
            case Quote(children):
                lines = self._quote(children, width, base)
            case Item():
                lines = self._item(block, width, base)
            case TableBlock():
                lines = self._table(block, width, base)
            case Rule():
                lines = [[Segment("─" * width, base + self.styles.frame)]]
        return lines

    def _nested(self, children: Sequence[Block], width: int, base: Style) -> list[Line]:
        lines: list[Line] = []
        for index, child in enumerate(children):
            if index and needs_gap(children[index - 1], child):
                lines.append([])
            lines += self._lines(child, width, base)
        return lines

    def _quote(self, children: Sequence[Block], width: int, base: Style) -> list[Line]:
        bar = [Segment("│ ", base + self.styles.frame)] if width - 2 >= MIN_WIDTH else []
        inside = self._nested(children, width - 2 * len(bar), base + self.styles.quote)
        return [[*bar, *line] for line in inside or [[]]]

    def _item(self, item: Item, width: int, base: Style) -> list[Line]:
        marker = f"{item.marker} "
        hang = cell_len(marker)
        if width - hang < MIN_WIDTH:
            return [[Segment(marker, base + self.styles.marker)], *self._nested(item.children, width, base)]
        inside = self._nested(item.children, width - hang, base)
        first, *rest = inside or [[]]
        lead = Segment(marker, base + self.styles.marker)
        indent = Segment(" " * hang, base)
        return [[lead, *first], *([indent, *line] if line else [] for line in rest)]

    def _code(self, code: Code, width: int) -> list[Line]:
        name = self.styles.code_style
        shown = code.lines[:FOLDED_CODE] if self._folds and is_long(code) else code.lines
        if code.growing:
            pieces = [highlight_line(line, code.info, name) for line in shown]
        else:
            pieces = highlight_lines(shown, code.info, name)
        if hidden := len(code.lines) - len(shown):
            more = self.styles.code_label + Style(meta={UNFOLDS: True})
            pieces.append([(f"… {hidden} more lines · {self._folds}", more)])
        lines = [line for text in pieces for line in self._code_line(text, width)]
        return [*self._label(code, width), *lines] if code.info or not lines else lines

    def _label(self, code: Code, width: int) -> list[Line]:
        style = self.styles.code_block + self.styles.code_label
        return [self._filled(line, width) for line in wrap([(code.info, style)], width)]

    def _code_line(self, pieces: Iterable[Piece], width: int) -> list[Line]:
        base = self.styles.code_block
        return [
            self._filled(line, width)
            for line in wrap([(text, base + style) for text, style in pieces], width, words=False)
        ]

    def _filled(self, line: Line, width: int) -> Line:
        used = sum(segment.cell_length for segment in line)
        return [*line, Segment(" " * (width - used), self.styles.code_block)] if used < width else line

    def _table(self, table: TableBlock, width: int, base: Style) -> list[Line]:
        head = self._cells(table.head, base + self.styles.table_head)
        rows = [self._cells(row, base) for row in table.rows]
        return table_lines(head, rows, table.aligns, width, base + self.styles.frame)

    def _cells(self, cells: Iterable[Inline], base: Style) -> list[list[Piece]]:
        return [self._pieces(cell, base) for cell in cells]

    def _pieces(self, spans: Inline, base: Style) -> list[Piece]:
        return [(span.text, self._of_span(span, base)) for span in spans]

    def _of_span(self, span: TextSpan, base: Style) -> Style:
        style = base + self._style(span.marks) if span.marks else base
        return style + Style(meta={TARGET: span.target}) if span.target else style

    def _make_style(self, marks: Mark) -> Style:
        styles = self.styles
        parts = {
            Mark.STRONG: styles.strong,
            Mark.EMPHASIS: styles.emphasis,
            Mark.STRIKE: styles.strike,
            Mark.CODE: styles.code,
            Mark.LINK: styles.link,
            Mark.ADDRESS: styles.address,
        }
        return Style.combine(style for mark, style in parts.items() if mark in marks)


def is_long(block: Block) -> bool:
    return isinstance(block, Code) and len(block.lines) > LONG_CODE


def needs_gap(previous: Block, block: Block) -> bool:
    """Whether a blank line separates two blocks: where the author typed one, and around what needs room."""
    if isinstance(block, Verbatim):
        return False
    if block.gap or isinstance(block, (Heading, TableBlock)) or isinstance(_last(previous), (Code, TableBlock)):
        return True
    if isinstance(block, Code):
        return not isinstance(previous, Item)
    return type(previous) is not type(block) and not isinstance(block, Item)


def _last(block: Block) -> Block:
    """What a block ends with: within a list item, its last part."""
    while isinstance(block, Item) and block.children:
        block = block.children[-1]
    return block
