"""An answer as lines: what is finished is given out once, the open end again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.ui.render.markdown.blocks import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.llm.events import TextDelta
    from exlchat.ui.line.formatter import Formatter, Fragments, Part
    from exlchat.ui.render.markdown.blocks import Block


class AnswerLines:
    """Thoughts and answer, in the order in which they come.

    Code that grows beyond the room for the open end is given out line by line: what has left the screen cannot be
    painted again.
    """

    def __init__(self, formatter: Formatter, speaker: str) -> None:
        self._formatter = formatter
        self._speaker = speaker
        self._section: _Section | None = None
        self._finished: list[Fragments] = []
        self._written: list[Fragments] = []

    def go_on_from(self, pieces: Sequence[TextDelta]) -> None:
        """Begin with text that is on the console already: its lines are left out, but for what more text changes."""
        before = AnswerLines(self._formatter, self._speaker)
        for piece in pieces:
            before.add(piece)
            self.add(piece)
        self._written = before.close()

    def add(self, piece: TextDelta) -> None:
        part: Part = "thinking" if piece.channel == "thought" else "answer"
        if self._section is None or self._section.part != part:
            self._end_section()
            self._section = _Section(self._formatter, part, self._speaker)
        self._section.source.append(piece.text)

    def take(self, room: int) -> tuple[list[Fragments], list[Fragments]]:
        """The lines that were finished since the last call, and the open end, which is at most `room` lines of code."""
        finished, self._finished = self._finished, []
        if self._section is None:
            return self._new(finished), []
        more, tail = self._section.take(room)
        new = self._new(finished + more)
        return new, tail[_same(tail, self._written) :]

    def close(self) -> list[Fragments]:
        self._end_section()
        finished, self._finished = self._finished, []
        return self._new(finished)

    def _new(self, lines: list[Fragments]) -> list[Fragments]:
        """Those that are not on the console; from the first one that differs on, all are written."""
        same = _same(lines, self._written)
        self._written = self._written[same:] if same == len(lines) else []
        return lines[same:]

    def _end_section(self) -> None:
        if self._section is not None:
            self._section.source.close()
            self._finished += self._section.take(0)[0]
            if self._section.part == "thinking":
                self._finished += self._formatter.gap()
            self._section = None


def _same(lines: Sequence[Fragments], others: Sequence[Fragments]) -> int:
    """How many lines are the same at the beginning of both."""
    both = zip(lines, others, strict=False)
    return next((number for number, (one, other) in enumerate(both) if one != other), min(len(lines), len(others)))


class _Section:
    """A stretch of an answer that is all thoughts, or all answer."""

    def __init__(self, formatter: Formatter, part: Part, speaker: str) -> None:
        self.part = part
        self.source = formatter.source(part)
        self._formatter = formatter
        self._head = formatter.head(part, speaker)
        self._given = 0
        """How many finished blocks are given out."""
        self._code_given = 0
        """How many lines of the open code are."""

    def take(self, room: int) -> tuple[list[Fragments], list[Fragments]]:
        open_end = list(self.source.advance())
        finished: list[Fragments] = []
        while self._given < len(self.source.closed):
            finished += self._block(self.source.closed[self._given], self._before())
            self._given += 1
        last = open_end[-1] if open_end else None
        tail = self._rendered(open_end)
        if isinstance(last, Code) and last.growing and len(open_end) == 1 and len(tail) > room:
            finished += self._grown(last)
            tail = self._rendered(open_end)
        if finished or tail:
            head, self._head = self._head, []
            finished = head + finished
        return finished, tail

    def _before(self) -> Block | None:
        return self.source.closed[self._given - 1] if self._given else None

    def _rendered(self, blocks: list[Block]) -> list[Fragments]:
        """The open end, without the lines of it that are given out already."""
        if self._code_given and blocks and isinstance(blocks[0], Code):
            return self._formatter.code_lines(self.part, blocks[0].lines[self._code_given :], blocks[0].info)
        lines: list[Fragments] = []
        before = self._before()
        for block in blocks:
            lines += self._formatter.block(self.part, block, before)
            before = block
        return lines

    def _block(self, block: Block, before: Block | None) -> list[Fragments]:
        if self._code_given and isinstance(block, Code):
            rest = block.lines[self._code_given :]
            self._code_given = 0
            return self._formatter.code_lines(self.part, rest, block.info)
        self._code_given = 0
        return self._formatter.block(self.part, block, before)

    def _grown(self, code: Code) -> list[Fragments]:
        """The lines of open code that are whole; its last one may still grow."""
        whole = len(code.lines) - 1
        if whole <= self._code_given:
            return []
        from exlchat.ui.render.markdown.render import needs_gap

        lines: list[Fragments] = []
        if not self._code_given:
            before = self._before()
            if before is not None and needs_gap(before, code):
                lines += self._formatter.gap()
            lines += self._formatter.code_label(self.part, code.info)
        lines += self._formatter.code_lines(self.part, code.lines[self._code_given : whole], code.info)
        self._code_given = whole
        return lines
