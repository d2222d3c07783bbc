"""One message laid out: its growing text, and the lines it makes at a width."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from textual.strip import Strip

from exlchat.ui.render.markdown.blocks import Block, Code, each
from exlchat.ui.render.markdown.document import Document, DocumentSource, PlainDocument
from exlchat.ui.render.markdown.render import is_long, needs_gap

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import TypeGuard

    from exlchat.ui.render.markdown.render import Renderer
    from exlchat.ui.render.markdown.wrap import Line
    from exlchat.ui.tui.widgets.transcript_items import Role


class MessageLayout:
    """Lines of one message's text. Those of finished blocks are made once and are the same objects from then on.

    `folding` renders the blocks with long code folded, but for those whose numbers are in `unfolded`.
    """

    def __init__(
        self,
        role: Role,
        text: str,
        renderer: Renderer,
        folding: Renderer | None = None,
        unfolded: Container[int] = frozenset(),
    ) -> None:
        self.lines: list[Strip] = []
        self._source: DocumentSource = Document(renderer.styles.underscores) if role == "assistant" else PlainDocument()
        self._source.append(text)
        self._renderer = renderer
        self._folding = folding
        self._unfolded = unfolded
        self._starts: list[int] = []
        """The first line of each block."""
        self._closed = 0
        """Finished blocks whose lines are in `lines`, and how many lines those are."""
        self._closed_lines = 0
        self._code_lines = 0
        """Complete lines of the growing code whose lines are kept, and how many of `lines` they and all before make."""
        self._kept = 0
        self._code_info = ""

    def append(self, text: str) -> None:
        self._source.append(text)

    def close(self) -> None:
        self._source.close()

    def update(self) -> int:
        """Bring `lines` up to date; returns the first line that may have changed."""
        tail = self._source.advance()
        closed = self._source.closed
        if len(closed) == self._closed and self._grows(tail):
            return self._update_code(tail[0], closed[-1] if closed else None)
        first_changed = self._closed_lines
        del self.lines[first_changed:], self._starts[self._closed :]
        previous = closed[self._closed - 1] if self._closed else None
        for block in closed[self._closed :]:
            self._add_block(block, previous)
            previous = block
        self._closed, self._closed_lines = len(closed), len(self.lines)
        self._code_lines = self._kept = 0
        self._add_tail(tail, previous)
        return first_changed

    def _add_tail(self, tail: Sequence[Block], previous: Block | None) -> None:
        if self._grows(tail):
            self._update_code(tail[0], previous)
            return
        for block in tail:
            self._add_block(block, previous)
            previous = block

    def _grows(self, tail: Sequence[Block]) -> TypeGuard[Sequence[Code]]:
        """Whether the open end is code whose lines are laid out one by one. Of folded code only few are."""
        if len(tail) != 1 or not isinstance(tail[0], Code) or not tail[0].growing:
            return False
        return self._folding is None or len(self._source.closed) in self._unfolded

    def block_at(self, line: int) -> int:
        return max(bisect_right(self._starts, line) - 1, 0)

    def has_long_code(self) -> bool:
        """Whether there is code that can be folded, as of the last `update`."""
        return any(is_long(block) for block in each([*self._source.closed, *self._source.advance()]))

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

    def _add_block(self, block: Block, previous: Block | None) -> None:
        folding = self._folding if len(self._starts) not in self._unfolded else None
        self._starts.append(len(self.lines))
        self._add((folding or self._renderer).render(block, previous))

    def _add(self, lines: Sequence[Line]) -> None:
        self.lines.extend(Strip(line) for line in lines)
