"""One message laid out: its growing text, and the lines it makes at a width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.strip import Strip

from exlchat.ui.markdown.blocks import Block, Code
from exlchat.ui.markdown.document import Document, PlainDocument, Source
from exlchat.ui.markdown.render import needs_gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.ui.markdown.render import Renderer
    from exlchat.ui.markdown.wrap import Line
    from exlchat.ui.tui.widgets.transcript_items import Role


class MessageLayout:
    """Lines of one message's text. Those of finished blocks are made once and are the same objects from then on."""

    def __init__(self, role: Role, text: str, renderer: Renderer) -> None:
        self.lines: list[Strip] = []
        self._source: Source = Document() if role == "assistant" else PlainDocument()
        self._source.append(text)
        self._renderer = renderer
        self._closed = 0
        """Finished blocks whose lines are in `lines`, and how many lines those are."""
        self._closed_lines = 0
        self._code_lines = 0
        """Complete lines of the growing code whose lines are kept, and how many of `lines` they and all before make."""
        self._kept = 0
        self._code_info = ""

    def append(self, text: str) -> None:
        """Take more text; `update` lays it out."""
        self._source.append(text)

    def close(self) -> None:
        """No more text will come."""
        self._source.close()

    def update(self) -> int:
        """Bring `lines` up to date; returns the first line that may have changed."""
        tail = self._source.advance()
        closed = self._source.closed
        if len(closed) == self._closed and len(tail) == 1 and isinstance(tail[0], Code) and tail[0].growing:
            return self._update_code(tail[0], closed[-1] if closed else None)
        first_changed = self._closed_lines
        del self.lines[first_changed:]
        previous = closed[self._closed - 1] if self._closed else None
        for block in closed[self._closed :]:
            self._add(self._renderer.render(block, previous))
            previous = block
        self._closed, self._closed_lines = len(closed), len(self.lines)
        self._code_lines = self._kept = 0
        self._add_tail(tail, previous)
        return first_changed

    def _add_tail(self, tail: Sequence[Block], previous: Block | None) -> None:
        if len(tail) == 1 and isinstance(tail[0], Code) and tail[0].growing:
            self._update_code(tail[0], previous)
            return
        for block in tail:
            self._add(self._renderer.render(block, previous))
            previous = block

    def _update_code(self, code: Code, previous: Block | None) -> int:
        """Lay out only the lines that came since the last time. The last line is laid out again: it may be half."""
        first_changed = self._kept
        if not self._kept or code.info != self._code_info:
            first_changed = self._closed_lines
            self._code_info, self._code_lines = code.info, 0
            del self.lines[self._closed_lines :]
            if previous is not None and needs_gap(previous, code):
                self._add([[]])
            self._add(self._renderer.code_label(code))
            self._kept = len(self.lines)
        del self.lines[self._kept :]
        complete = max(len(code.lines) - 1, self._code_lines)
        self._add(self._renderer.growing_code(code.lines[self._code_lines : complete], code.info))
        self._code_lines, self._kept = complete, len(self.lines)
        nothing_yet = ("",) if not code.info and not complete else ()
        self._add(self._renderer.growing_code(code.lines[complete:] or nothing_yet, code.info))
        return first_changed

    def _add(self, lines: Sequence[Line]) -> None:
        self.lines.extend(Strip(line) for line in lines)
