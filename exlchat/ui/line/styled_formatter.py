"""Markdown in the styles of a theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.style import Style

from exlchat.ui.line.formatter import PROMPT, Part, Remark, clean_name
from exlchat.ui.line.styles import TokenStyles, fragment_style, text_styles
from exlchat.ui.render.markdown.wrap import wrap
from exlchat.untrusted.sanitize import normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from exlchat.chat.model import Role
    from exlchat.config.schema import Underscores
    from exlchat.config.themes import ThemeFile
    from exlchat.ui.line.formatter import Fragments, TokenPiece
    from exlchat.ui.render.markdown.blocks import Block
    from exlchat.ui.render.markdown.document import DocumentSource
    from exlchat.ui.render.markdown.render import Renderer
    from exlchat.ui.render.markdown.wrap import Line

_THOUGHT_MARK: Final = "┊ "
_LEAST_WIDTH: Final = 8
_FOUND: Final = Style(reverse=True)
_REMARKS: Final[dict[Remark, str]] = {"note": "class:notice", "warning": "class:warning", "footer": "class:quiet"}


class StyledFormatter:
    """Markdown in the theme's styles, wrapped at the width that the terminal has now."""

    def __init__(self, theme: ThemeFile, columns: Callable[[], int], underscores: Callable[[], Underscores]) -> None:
        self._columns = columns
        self._underscores = underscores
        self._renderers: dict[Part, Renderer] = {}
        self.use(theme)

    def use(self, theme: ThemeFile) -> None:
        """Go on in the colours of a theme; what is made already keeps its own."""
        self._styles = text_styles(theme)
        self._tokens = TokenStyles(theme)
        self._renderers.clear()

    def source(self, part: Part) -> DocumentSource:
        # The parser is not needed for the first prompt.
        from exlchat.ui.render.markdown.document import Document

        del part
        return Document(self._underscores())

    def head(self, part: Part, speaker: str) -> list[Fragments]:
        """Thoughts are named; an answer needs no name."""
        return [[("class:quiet", f"{_THOUGHT_MARK}{clean_name(speaker)} thinks:")]] if part == "thinking" else []

    def name_over(self, speaker: str) -> list[Fragments]:
        return [[("class:prompt", f"{clean_name(speaker)}:")]]

    def block(self, part: Part, block: Block, previous: Block | None) -> list[Fragments]:
        """The block with the blank line before it."""
        return self._marked(part, self._renderer_of(part).render(block, previous))

    def code_lines(self, part: Part, lines: Iterable[str], info: str) -> list[Fragments]:
        return self._marked(part, self._renderer_of(part).growing_code(lines, info))

    def code_label(self, part: Part, info: str) -> list[Fragments]:
        renderer = self._renderer_of(part)
        return self._marked(part, wrap([(info, self._styles.code_label)], renderer.width)) if info else []

    def said(self, role: Role, text: str) -> list[Fragments]:
        lead, style = (PROMPT, "class:prompt") if role == "user" else ("system> ", "class:system")
        lines = self._wrapped(text, len(lead))
        return [[(style, lead if number == 0 else " " * len(lead)), *line] for number, line in enumerate(lines)]

    def remark(self, kind: Remark, text: str) -> list[Fragments]:
        return [[(_REMARKS[kind], piece) for _, piece in line] for line in self._wrapped(text, 0)]

    def marked(self, text: str, marks: Sequence[tuple[int, int]]) -> list[Fragments]:
        pieces, at = [], 0
        for start, end in marks:
            pieces += [(printable(text[at:start]), Style.null()), (printable(text[start:end]), _FOUND)]
            at = end
        pieces.append((printable(text[at:]), Style.null()))
        return [
            [(f"class:notice{' reverse' if one.style == _FOUND else ''}", one.text) for one in line if one.text]
            for line in wrap(pieces, max(self._columns() - 1, _LEAST_WIDTH))
        ]

    def tokens(self, pieces: Iterable[TokenPiece]) -> list[Fragments]:
        """In the colour of who says it; every second one underlined, what the cache holds shaded."""
        styled = [
            (normalize_newlines(printable(one.text)), self._tokens.style(one, underline=bool(number % 2)))
            for number, one in enumerate(pieces)
        ]
        return [_fragments(line) for line in wrap(styled, max(self._columns() - 1, _LEAST_WIDTH))]

    def gap(self) -> list[Fragments]:
        return [[]]

    def _renderer_of(self, part: Part) -> Renderer:
        # A line that fills the last column would make some terminals add an empty one.
        width = self._columns() - 1 - (len(_THOUGHT_MARK) if part == "thinking" else 0)
        wanted = max(width, _LEAST_WIDTH)
        chosen = self._renderers.get(part)
        if chosen is None or chosen.width != wanted:
            from exlchat.ui.render.markdown.render import Renderer

            chosen = Renderer(self._styles, wanted)
            self._renderers[part] = chosen = chosen.quieter() if part == "thinking" else chosen
        return chosen

    def _wrapped(self, text: str, lead: int) -> list[Fragments]:
        clean = printable(normalize_newlines(text))
        return [
            _fragments(line) for line in wrap([(clean, Style.null())], max(self._columns() - 1 - lead, _LEAST_WIDTH))
        ]

    def _marked(self, part: Part, lines: Iterable[Line]) -> list[Fragments]:
        shown = [_fragments(line) for line in lines]
        if part == "answer":
            return shown
        return [[("class:quiet", _THOUGHT_MARK if line else _THOUGHT_MARK.rstrip()), *line] for line in shown]


def _fragments(line: Line) -> Fragments:
    """A rendered line without the spaces at its end, which would only come along when it is copied."""
    pieces = [(fragment_style(segment.style), segment.text) for segment in line if segment.text]
    while pieces and not pieces[-1][1].rstrip():
        pieces.pop()
    if pieces:
        style, text = pieces[-1]
        pieces[-1] = (style, text.rstrip())
    return pieces
