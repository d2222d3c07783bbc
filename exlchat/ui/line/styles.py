"""Styles of a theme for the renderer, and the renderer's styles for prompt_toolkit. One source: the theme file."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from prompt_toolkit.styles import ANSI_COLOR_NAMES
from rich.color import Color, ColorType
from rich.style import Style

from exlchat.ui.render.markdown.styles import TextStyles
from exlchat.ui.render.themes import for_prompt_toolkit, prompt_toolkit_style, pygments_style

if TYPE_CHECKING:
    from exlchat.config.themes import ThemeFile
    from exlchat.ui.line.formatter import TokenPiece

_ATTRIBUTES: Final = ("bold", "italic", "underline", "strike", "dim")
_ANSI: Final = (
    *("ansiblack", "ansired", "ansigreen", "ansiyellow", "ansiblue", "ansimagenta", "ansicyan", "ansigray"),
    *("ansibrightblack", "ansibrightred", "ansibrightgreen", "ansibrightyellow"),
    *("ansibrightblue", "ansibrightmagenta", "ansibrightcyan", "ansiwhite"),
)
"""prompt_toolkit's names in the order of the terminal's numbers."""


def rules_of(theme: ThemeFile) -> dict[str, str]:
    """Rules for prompt_toolkit. Text that nothing is said of keeps the terminal's own colour, on its own background."""
    rules = prompt_toolkit_style(theme)
    quiet = rules["auto-suggestion"]
    own = {name: rule for name, rule in rules.items() if name} | {"quiet": quiet}
    for state in ("completion", "completion.current"):
        own[f"completion-menu.meta.{state}"] = rules[f"completion-menu.{state}"]
    return own


def text_styles(theme: ThemeFile) -> TextStyles:
    """Styles for the renderer. Code has no background, which would fill scrollback and copies with spaces."""
    rules = rules_of(theme)

    def part(name: str) -> Style:
        return rich_style(rules.get(name, ""))

    quiet = part("quiet")
    return TextStyles(
        code=part("code"),
        link=part("link"),
        address=quiet,
        heading=part("heading"),
        quote=part("quote"),
        frame=quiet,
        marker=part("assistant"),
        code_label=quiet,
        code_style=pygments_style(theme),
    )


class TokenStyles:
    def __init__(self, theme: ThemeFile) -> None:
        rules = rules_of(theme)
        names = {"user": "prompt", "assistant": "assistant", "system": "system", None: "quiet"}
        self._of: dict[str | None, Style] = {role: rich_style(rules[name]) for role, name in names.items()}
        self._held = rich_style(f"bg:{for_prompt_toolkit(theme.colors['panel'])}")

    def style(self, piece: TokenPiece, *, underline: bool) -> Style:
        style = self._of.get(piece.role, self._of[None])
        style = style + self._held if piece.cached else style
        return style + Style(underline=True) if underline else style


def rich_style(rule: str) -> Style:
    """A rule of prompt_toolkit as a Rich style; words that Rich has no meaning for are left out."""
    colors: dict[str, Color | None] = {}
    attributes: dict[str, bool | None] = {}
    for word in rule.split():
        if word.removeprefix("no") in _ATTRIBUTES:
            attributes[word.removeprefix("no")] = not word.startswith("no")
        elif (color := _rich_color(word.removeprefix("bg:").removeprefix("fg:"))) is not None:
            colors["bgcolor" if word.startswith("bg:") else "color"] = color
    return Style(
        color=colors.get("color"),
        bgcolor=colors.get("bgcolor"),
        bold=attributes.get("bold"),
        italic=attributes.get("italic"),
        underline=attributes.get("underline"),
        strike=attributes.get("strike"),
        dim=attributes.get("dim"),
    )


def _rich_color(name: str) -> Color | None:
    if name.startswith("#"):
        return Color.parse(name)
    if name in _ANSI:
        return Color.from_ansi(_ANSI.index(name))
    return Color.default() if name in ANSI_COLOR_NAMES else None


@lru_cache(maxsize=1024)
def fragment_style(style: Style | None) -> str:
    if style is None:
        return ""
    words = [name for name in _ATTRIBUTES if getattr(style, name)]
    if style.color is not None:
        words.append(_color_word(style.color))
    if style.bgcolor is not None:
        words.append(f"bg:{_color_word(style.bgcolor)}")
    return " ".join(words)


def _color_word(color: Color) -> str:
    if color.type is ColorType.DEFAULT:
        return "ansidefault"
    if color.number is not None and color.number < len(_ANSI):
        return _ANSI[color.number]
    return color.get_truecolor().hex
