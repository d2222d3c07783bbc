"""A theme shown in its own colours: a few lines of a conversation, drawn by what draws the chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from exlchat.ui.render.markdown.document import Document
from exlchat.ui.render.markdown.render import Renderer
from exlchat.ui.render.markdown.styles import TextStyles
from exlchat.ui.render.themes import for_rich, pygments_style
from exlchat.ui.tui.widgets.transcript_paint import GUTTER_WIDTH, framed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.config.themes import ThemeFile
    from exlchat.ui.tui.widgets.transcript_items import Role

Line = list[Segment]

_SHORT: Final[Sequence[tuple[Role, str]]] = (
    ("user", "How do I sort words by their length?"),
    (
        "assistant",
        "### With a key\n"
        "`sorted` takes one, see [the manual](https://docs.python.org/3/howto/sorting.html):\n\n"
        "```python\n"
        "def by_length(words: list[str], most=12):  # the first\n"
        "    return sorted(words, key=len)[:most] or ['none']\n"
        "```",
    ),
)
_LONG: Final[Sequence[tuple[Role, str]]] = (
    ("system", "Answer in as few words as will do."),
    *_SHORT[:1],
    ("thinking", "They want a key function, not a comparison."),
    *_SHORT[1:],
    (
        "assistant",
        "> Words of one length stay in order.\n\n"
        "| call | in place |\n|---|---|\n| `sorted(words)` | no |\n| `words.sort()` | **yes** |\n\n"
        "- [x] sorted\n- [ ] shuffled\n\n"
        "```diff\n- words.sort()\n+ words = sorted(words)\n```",
    ),
    ("notice", "A remark of exlchat itself."),
)


def preview(theme: ThemeFile, width: int, *, long: bool = False) -> list[Line]:
    """Lines that are `width` cells wide, filled with the theme's background."""
    base = _style(theme, "foreground", on="background")
    renderer = Renderer(_text_styles(theme, base), width - GUTTER_WIDTH - 2)
    lines = []
    for role, text in _LONG if long else _SHORT:
        mark = base + _style(theme, f"roles.{'notice' if role == 'thinking' else role}")
        for line in _rendered(renderer.quieter() if role == "thinking" else renderer, text):
            strip = framed(Strip(line), role, mark, base, 0, width=width - 2)
            lines.append([Segment(" ", base), *strip, Segment(" ", base)])
    return lines


def headline(theme: ThemeFile, width: int) -> Line:
    base = _style(theme, "foreground", on="panel")
    name = Segment(f" {theme.name} ", base + _style(theme, "interface.primary") + Style(bold=True))
    told = Segment(f" {theme.description}", base + _style(theme, "quiet") + _words(theme, "quiet"))
    return list(Strip([name, told]).adjust_cell_length(width, base))


def swatch(theme: ThemeFile, key: str) -> Line:
    color = theme.colors[key]
    return [Segment("██ ", Style(color=for_rich(color))), Segment(f"{key:<24} {color}")]


def _rendered(renderer: Renderer, text: str) -> list[Line]:
    document = Document()
    document.append(text)
    document.close()
    document.advance()
    lines: list[Line] = []
    for at, block in enumerate(document.closed):
        lines += renderer.render(block, document.closed[at - 1] if at else None)
    return lines


def _text_styles(theme: ThemeFile, base: Style) -> TextStyles:
    def text(key: str) -> Style:
        return _style(theme, f"text.{key}") + _words(theme, key)

    return TextStyles(
        text=base,
        code=text("code") + _style(theme, on="text.code-background"),
        link=text("link"),
        address=_style(theme, "quiet") + _words(theme, "quiet"),
        heading=text("heading"),
        quote=text("quote"),
        frame=_style(theme, "line"),
        marker=_style(theme, "interface.secondary"),
        code_block=base + _style(theme, "syntax.name", on="text.code-background"),
        code_label=_style(theme, "quiet") + _words(theme, "quiet"),
        code_style=pygments_style(theme),
    )


def _style(theme: ThemeFile, key: str | None = None, *, on: str | None = None) -> Style:
    color = None if key is None else for_rich(theme.colors[key])
    return Style(color=color, bgcolor=None if on is None else for_rich(theme.colors[on]))


def _words(theme: ThemeFile, key: str) -> Style:
    return Style.parse(theme.styles[key])
