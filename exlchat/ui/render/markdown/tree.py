"""Parser tokens to blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from exlchat.ui.render.markdown.blocks import (
    Block,
    Code,
    Heading,
    Inline,
    Item,
    Paragraph,
    Quote,
    Rule,
    TableBlock,
    TextSpan,
)
from exlchat.ui.render.markdown.inline import parse_inline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

    from exlchat.config.schema import Underscores

BULLET: Final = "•"
_TASK: Final = re.compile(r"\[([ xX])\](?=\s)\s*")


@dataclass(frozen=True, slots=True)
class Numbering:
    """Where a list stands: the number its last item was typed with, and the one it is shown with."""

    typed: int | None = None
    shown: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text is read. `growing`: text may still come, so that a code fence without an end is not finished."""

    growing: bool
    underscores: Underscores


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest part of a text that can be finished for itself: a top-level block, or an item of a top-level list.

    `start` and `end` are lines of the parsed text: its first, and the one after its last with content.
    `numbering` is that of the list before this item; None for what begins a list or is no item.
    """

    tokens: Sequence[Token]
    start: int
    end: int
    numbering: Numbering | None = None


def units(tokens: Sequence[Token], numbering: Numbering | None) -> list[Unit]:
    """Cut a token stream into units. `numbering` is that of the list which a leading item continues, if any."""
    result: list[Unit] = []
    for group in _siblings(tokens):
        if group[0].type in ("bullet_list_open", "ordered_list_open"):
            previous = numbering if not result else None
            for item in _siblings(group[1:-1]):
                result.append(_unit(item, previous))
                previous = next_number(item[0], previous)
        else:
            result.append(_unit(group, None))
    return result


def next_number(item: Token, previous: Numbering | None) -> Numbering:
    """The numbering after an item: as typed, but a repeated number (1. 1. 1.) counts on, as Markdown means it."""
    if not item.info:
        return Numbering()
    typed = int(item.info)
    repeated = previous is not None and previous.typed == typed
    return Numbering(typed, previous.shown + 1 if previous and repeated else typed)


def build(unit: Unit, reading: Reading, *, gap: bool) -> Block:
    block = next(_blocks(unit.tokens, reading, unit.numbering))
    return replace(block, gap=gap)


def _unit(tokens: Sequence[Token], numbering: Numbering | None) -> Unit:
    start = tokens[0].map[0] if tokens[0].map else 0
    return Unit(tokens, start, _content_end(tokens), numbering)


def _content_end(tokens: Sequence[Token]) -> int:
    """Containers also claim the blank lines after them; their leaves do not."""
    leaves = [token.map[1] for token in tokens if token.map and token.nesting == 0 and token.type != "inline"]
    leaves += [token.map[1] for token in tokens if token.map and token.type in ("paragraph_open", "heading_open")]
    first = tokens[0].map
    return max(leaves, default=first[0] + 1 if first else 0)


def _siblings(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Tokens of each block on the first level, opening and closing ones included."""
    depth = start = 0
    for index, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[start : index + 1]
            start = index + 1


def _blocks(tokens: Sequence[Token], reading: Reading, numbering: Numbering | None = None) -> Iterator[Block]:
    end: int | None = None
    for group in _siblings(tokens):
        start = group[0].map[0] if group[0].map else 0
        gap = end is not None and start > end
        if group[0].type in ("bullet_list_open", "ordered_list_open"):
            previous: Numbering | None = None
            for item in _siblings(group[1:-1]):
                start = item[0].map[0] if item[0].map else 0
                yield _item(item, reading, previous, gap=end is not None and start > end)
                previous = next_number(item[0], previous)
                end = _content_end(item)
        elif group[0].type == "list_item_open":
            yield _item(group, reading, numbering, gap=gap)
        else:
            yield _block(group, reading, gap)
        end = _content_end(group)


def _block(tokens: Sequence[Token], reading: Reading, gap: bool) -> Block:
    first = tokens[0]
    block: Block
    match first.type:
        case "paragraph_open":
            block = Paragraph(parse_inline(tokens[1].content, reading.underscores), gap)
        case "heading_open":
            block = Heading(int(first.tag[1]), parse_inline(tokens[1].content, reading.underscores), gap)
        case "fence":
            block = Code(_code_lines(first), first.info.strip(), reading.growing and not fence_is_closed(first), gap)
        case "code_block":
            block = Code(_code_lines(first), gap=gap)
        case "blockquote_open":
            block = Quote(tuple(_blocks(tokens[1:-1], reading)), gap)
        case "table":
            block = _table(first, reading, gap)
        case "hr":
            block = Rule(gap)
        case _:
            raise ValueError(f"the Markdown parser made a token of unknown type {first.type!r}")
    return block


def _item(tokens: Sequence[Token], reading: Reading, previous: Numbering | None, *, gap: bool) -> Item:
    children = tuple(_blocks(tokens[1:-1], reading))
    first = tokens[0]
    marker = f"{next_number(first, previous).shown}{first.markup}" if first.info else BULLET
    if children and isinstance(children[0], Paragraph) and (task := _TASK.match(_leading_text(children[0].spans))):
        marker = "☐" if task[1] == " " else "☑"
        spans = children[0].spans
        text = TextSpan(spans[0].text[task.end() :], spans[0].marks)
        children = (replace(children[0], spans=(text, *spans[1:])), *children[1:])
    return Item(marker, children, gap)


def _leading_text(spans: Inline) -> str:
    return spans[0].text if spans else ""


def _code_lines(token: Token) -> tuple[str, ...]:
    return tuple(token.content.removesuffix("\n").split("\n")) if token.content else ()


def fence_is_closed(token: Token) -> bool:
    """Whether a fence token saw its closing line: then it spans two lines more than it has content."""
    if token.map is None:
        return True
    content_lines = token.content.count("\n") + (not token.content.endswith("\n") and bool(token.content))
    return token.map[1] - token.map[0] - 1 > content_lines


def _table(token: Token, reading: Reading, gap: bool) -> TableBlock:
    head, rows = token.meta["head"], token.meta["rows"]
    return TableBlock(
        tuple(parse_inline(cell, reading.underscores) for cell in head),
        tuple(token.meta["aligns"]),
        tuple(tuple(parse_inline(cell, reading.underscores) for cell in row) for row in rows),
        gap,
    )
