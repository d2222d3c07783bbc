"""The tree of a Markdown text: frozen blocks, each made of spans of marked text. No widths, no colours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Mark(Flag):
    """How a span is set off from the text around it."""

    NONE = 0
    STRONG = auto()
    EMPHASIS = auto()
    STRIKE = auto()
    CODE = auto()
    LINK = auto()
    ADDRESS = auto()
    """The address of a link, shown after its text."""


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A run of text with the same marks. A newline in it is a line break that the author typed.

    `target` is where a link leads, as it was written.
    """

    text: str
    marks: Mark = Mark.NONE
    target: str = ""


Inline = tuple[TextSpan, ...]
Align = Literal["left", "center", "right"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text. `gap`, here and below: whether a blank line stands before the block."""

    spans: Inline
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 6."""

    level: int
    spans: Inline
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A fence or indented code. `info` is the fence's label; `growing` while more lines may come."""

    lines: tuple[str, ...]
    info: str = ""
    growing: bool = False
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Quote:
    children: tuple[Block, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One list item. Lists have no block of their own, so that an item can be finished while its list grows."""

    marker: str
    children: tuple[Block, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table; every row has as many cells as the head."""

    head: tuple[Inline, ...]
    aligns: tuple[Align, ...]
    rows: tuple[tuple[Inline, ...], ...]
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text shown as it was typed, without any markup."""

    text: str
    gap: bool = False


Block = Paragraph | Heading | Code | Quote | Item | TableBlock | Rule | Verbatim


def each(blocks: Iterable[Block]) -> Iterator[Block]:
    """Blocks and those within them, in the order of reading."""
    for block in blocks:
        yield block
        if isinstance(block, (Quote, Item)):
            yield from each(block.children)


def targets(blocks: Iterable[Block]) -> list[str]:
    """Where the links of blocks lead, each once, in the order of reading."""
    found: dict[str, None] = {}
    for block in each(blocks):
        texts: Iterable[Inline] = ()
        if isinstance(block, (Paragraph, Heading)):
            texts = (block.spans,)
        elif isinstance(block, TableBlock):
            texts = (*block.head, *(cell for row in block.rows for cell in row))
        found.update((span.target, None) for spans in texts for span in spans if span.target)
    return list(found)
