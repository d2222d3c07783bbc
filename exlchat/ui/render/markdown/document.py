"""A text that grows: what is finished stays, and only its open end is parsed again.

Markdown's block structure is read line by line. Once a complete line has begun a new top-level block or list item,
no later line can change the ones before (link reference definitions, the one exception, are switched off).
So a `Document` keeps the source from the start of the last such unit on and parses only that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from exlchat.app.markdown.grammar import parser
from exlchat.ui.render.markdown.blocks import Block, Code, Verbatim
from exlchat.ui.render.markdown.tree import Numbering, Reading, Unit, build, fence_is_closed, units
from exlchat.untrusted.sanitize import normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token

    from exlchat.config.schema import Underscores

_FENCE: Final = re.compile(r"(`{3,}|~{3,})")


class DocumentSource(Protocol):
    """What a layout reads: finished blocks, which never change, and the present reading of the open end."""

    @property
    def closed(self) -> Sequence[Block]:
        """Finished blocks, in order; the list only grows."""

    def append(self, text: str) -> None:
        """Take more text; nothing is parsed yet."""

    def close(self) -> None:
        """No more text will come: everything becomes finished."""

    def advance(self) -> Sequence[Block]:
        """Move what is finished to `closed` and return the blocks of the open end."""


class _Inlet:
    """Cleans text on its way in, and keeps back a last carriage return that may be half of a line end."""

    def __init__(self) -> None:
        self._carriage_return = ""

    def take(self, text: str) -> str:
        text = self._carriage_return + text
        self._carriage_return = "\r" if text.endswith("\r") else ""
        return printable(normalize_newlines(text.removesuffix("\r")))

    def rest(self) -> str:
        rest, self._carriage_return = self._carriage_return, ""
        return normalize_newlines(rest)


class PlainDocument:
    """Text shown as it was typed: every line is a block."""

    def __init__(self) -> None:
        self.closed: list[Block] = []
        self._inlet = _Inlet()
        self._source = ""
        self._is_closed = False

    def append(self, text: str) -> None:
        self._source += self._inlet.take(text)

    def close(self) -> None:
        self._source += self._inlet.rest()
        self._is_closed = True

    def advance(self) -> Sequence[Block]:
        """Finish complete lines; the open end is the last one."""
        lines = self._source.split("\n")
        self._source = lines.pop()
        self.closed += [Verbatim(line) for line in lines]
        last = [Verbatim(self._source)] if self._source else []
        if self._is_closed:
            self.closed += last
            self._source = ""
            return ()
        return last


class _OpenFence:
    """A top-level code fence that has begun: its lines are collected without the parser."""

    def __init__(self, markup: str, info: str, gap: bool) -> None:
        self._info = info
        self._gap = gap
        self._end = re.compile(rf" {{0,3}}{re.escape(markup[0])}{{{len(markup)},}}[ \t]*")
        self.lines: list[str] = []

    def ends_with(self, line: str) -> bool:
        return self._end.fullmatch(line) is not None

    def code(self, partial: str = "", *, growing: bool) -> Code:
        last = (partial,) if partial and not self.ends_with(partial) else ()
        return Code((*self.lines, *last), self._info, growing, self._gap)


class Document:
    """Markdown that grows. However the text was cut into pieces, `closed` is the same after `close` and `advance`."""

    def __init__(self, underscores: Underscores = "text") -> None:
        self._underscores: Underscores = underscores
        self.closed: list[Block] = []
        self._inlet = _Inlet()
        self._source = ""
        """From the first line of the open unit on; within an open fence, from its first line not yet taken."""
        self._parsed = 0
        """Length of the complete lines of `_source` that `_close_units` has seen."""
        self._gap = False
        self._numbering: Numbering | None = None
        self._fence: _OpenFence | None = None
        self._is_closed = False

    def append(self, text: str) -> None:
        self._source += self._inlet.take(text)

    def close(self) -> None:
        self._source += self._inlet.rest()
        self._is_closed = True

    def advance(self) -> Sequence[Block]:
        """Finish what can be finished; the open end is at most a few blocks."""
        self._close_units()
        if self._fence is not None:
            if not self._is_closed:
                return (self._fence.code(self._source, growing=True),)
            self.closed.append(self._fence.code(self._source, growing=False))
            self._fence, self._source = None, ""
            return ()
        tail = self._build(self._units(self._source), growing=not self._is_closed) if self._source else []
        if self._is_closed:
            self.closed += tail
            self._source = ""
            return ()
        return tail

    def _close_units(self) -> None:
        while True:
            if self._fence is not None and not self._take_fence_lines(self._fence):
                return
            complete = self._source.rfind("\n") + 1
            if complete <= self._parsed:
                return
            self._parsed = complete
            text = self._source[:complete]
            found = self._units(text)
            if not found:
                return
            if len(found) > 1:
                self.closed += self._build(found[:-1], growing=False)
            self._keep_from(found, text)
            if not self._open_fence(found[-1]):
                return

    def _units(self, text: str) -> list[Unit]:
        tokens: list[Token] = []
        markdown = parser()
        markdown.block.parse(text, markdown, {}, tokens)
        return units(tokens, self._numbering)

    def _gap_before(self, first: Unit) -> bool:
        return bool(self.closed) and (self._gap or first.start > 0)

    def _build(self, found: Sequence[Unit], *, growing: bool) -> list[Block]:
        result: list[Block] = []
        for index, unit in enumerate(found):
            gap = unit.start > found[index - 1].end if index else self._gap_before(unit)
            result.append(build(unit, Reading(growing, self._underscores), gap=gap))
        return result

    def _keep_from(self, found: Sequence[Unit], text: str) -> None:
        """Let the source begin with the last unit, and remember what stood before it."""
        last = found[-1]
        self._gap = last.start > found[-2].end if len(found) > 1 else self._gap_before(last)
        self._numbering = last.numbering
        offset = _line_offset(text, last.start)
        self._source = self._source[offset:]
        self._parsed -= offset

    def _open_fence(self, unit: Unit) -> bool:
        """Go on without the parser if the open unit is a fence that starts in the first column."""
        token = unit.tokens[0]
        opening = _FENCE.match(self._source)
        if token.type != "fence" or opening is None or fence_is_closed(token):
            return False
        self._fence = _OpenFence(opening[1], token.info.strip(), self._gap)
        self._source = self._source[self._source.index("\n") + 1 :]
        self._parsed = 0
        return True

    def _take_fence_lines(self, fence: _OpenFence) -> bool:
        """Move complete lines into the fence; True once it has ended and the parser goes on behind it."""
        lines = self._source.split("\n")
        partial = lines.pop()
        for index, line in enumerate(lines):
            if fence.ends_with(line):
                self.closed.append(fence.code(growing=False))
                self._fence = None
                self._numbering = None
                self._gap = False
                self._source = "\n".join([*lines[index + 1 :], partial])
                self._parsed = 0
                return True
            fence.lines.append(line)
        self._source = partial
        return False


def _line_offset(text: str, line: int) -> int:
    """Where a line begins, in characters."""
    offset = 0
    for _ in range(line):
        offset = text.index("\n", offset) + 1
    return offset
