"""A theme in the words of what paints it: Textual, prompt_toolkit, Pygments and Rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pygments import token
from pygments.style import Style

from exlchat.config.themes import ANSI_COLORS, PALETTE_NEEDED, TERMINAL_DEFAULT, USES, is_ansi

if TYPE_CHECKING:
    from textual.theme import Theme

    from exlchat.config.themes import ThemeFile

_FOCUS_SHARE = 0.7
"""How much of the primary colour is in the frame of what has the focus, where the theme does not say `focus`."""
_VEIL_ALPHA = "b3"
_IN_PYGMENTS: Final = {
    name: "ansi" + name.removeprefix("ansi_").replace("_", "")
    for name in ANSI_COLORS
    if name not in (TERMINAL_DEFAULT, "ansi_white", "ansi_bright_white")
} | {"ansi_white": "ansigray", "ansi_bright_white": "ansiwhite"}
_FROM_PYGMENTS: Final = {theirs: ours.removeprefix("ansi_") for ours, theirs in _IN_PYGMENTS.items()}


def textual_theme(theme: ThemeFile) -> Theme:
    """The Textual theme; colours beyond Textual's own become variables such as `$roles-user`."""
    from textual.theme import Theme

    colors = theme.colors
    return Theme(
        name=theme.name,
        dark=theme.dark,
        primary=colors["interface.primary"],
        secondary=colors["interface.secondary"],
        accent=colors["interface.accent"],
        success=colors["interface.success"],
        warning=colors["interface.warning"],
        error=colors["interface.error"],
        background=colors["background"],
        surface=colors["surface"],
        panel=colors["panel"],
        foreground=colors["foreground"],
        boost=colors["surface"],
        ansi=theme.ansi,
        variables=_variables(theme),
    )


def _variables(theme: ThemeFile) -> dict[str, str]:
    colors = theme.colors
    own = {key.replace(".", "-"): colors[key] for key in (*PALETTE_NEEDED, *_keys("roles", "text", "syntax"))}
    styles = {f"{key}-style": value for key, value in theme.styles.items()}
    background, quiet = colors["background"], theme.styles["quiet"]
    # A colour of the terminal cannot be half transparent.
    veil = "transparent" if is_ansi(background) else f"{background}{_VEIL_ALPHA}"
    focus = colors.get("focus") or mixed(colors["interface.primary"], _FOCUS_SHARE, background)
    cursor = background if theme.ansi else colors["interface.primary"]
    return (
        own
        | styles
        | {
            # For styles within a text, where a style of `none` is none.
            "quiet-text": colors["quiet"] if quiet == "none" else f"{quiet} {colors['quiet']}",
            "focus": focus,
            "veil": veil,
            # Textual's own style sheets use these two, and only its own themes of the terminal's colours have them.
            "ansi-background": background,
            "ansi-foreground": colors["foreground"],
            "text-muted": colors["quiet"],
            "border": colors["interface.primary"],
            "border-blurred": colors["line"],
            "scrollbar": colors["line"],
            "scrollbar-hover": colors["quiet"],
            "scrollbar-active": colors["interface.primary"],
            "scrollbar-background": colors["background"],
            "scrollbar-background-hover": colors["background"],
            "scrollbar-background-active": colors["background"],
            "scrollbar-corner-color": colors["background"],
            "input-selection-background": colors["selection"],
            "input-cursor-background": cursor,
            "input-cursor-foreground": background,
            "input-selection-foreground": colors["foreground"],
            "screen-selection-background": colors["selection"],
            "screen-selection-foreground": colors["foreground"],
            "block-cursor-background": colors["selection"],
            "block-cursor-foreground": colors["foreground"],
            "block-cursor-text-style": "bold" if theme.styles["selection"] == "none" else theme.styles["selection"],
            "block-cursor-blurred-background": colors["panel"],
            "block-cursor-blurred-foreground": colors["foreground"],
            "block-cursor-blurred-text-style": "none",
            "block-hover-background": colors["panel"],
            "footer-key-foreground": colors["interface.primary"],
        }
    )


def prompt_toolkit_style(theme: ThemeFile) -> dict[str, str]:
    """Style rules for `prompt_toolkit.styles.Style.from_dict`, for the line mode."""
    c = {key: for_prompt_toolkit(color) for key, color in theme.colors.items()}
    styles = {key: "" if words == "none" else f"{words} " for key, words in theme.styles.items()}
    quiet, selection = styles["quiet"], styles["selection"]
    return {
        "": c["foreground"],
        "prompt": f"bold {c['roles.user']}",
        "assistant": c["roles.assistant"],
        "system": c["roles.system"],
        "notice": c["roles.notice"],
        "thinking": f"italic {quiet}{c['roles.notice']}",
        "error": c["interface.error"],
        "warning": c["interface.warning"],
        "heading": f"{styles['heading']}{c['text.heading']}",
        "link": f"{styles['link']}{c['text.link']}",
        "quote": f"{styles['quote']}{c['text.quote']}",
        "code": f"{styles['code']}bg:{c['text.code-background']} {c['text.code']}",
        "bottom-toolbar": f"noreverse {quiet}bg:{c['panel']} {c['quiet']}",
        "completion-menu.completion": f"bg:{c['panel']} {c['foreground']}",
        "completion-menu.completion.current": f"{selection}bg:{c['selection']} {c['foreground']}",
        "auto-suggestion": f"{quiet}{c['quiet']}",
    }


def pygments_style(theme: ThemeFile) -> type[Style]:
    c = {key: for_pygments(theme.colors[f"syntax.{key}"]) for key in USES["syntax"]}
    keyword, comment = (f"{_for_code(theme.styles[key])}{c[key]}" for key in ("keyword", "comment"))
    styles = {
        token.Token: c["name"],
        token.Comment: comment,
        token.Comment.Preproc: f"noitalic {c['keyword']}",
        token.Keyword: keyword,
        token.Keyword.Type: c["type"],
        token.Keyword.Constant: c["number"],
        token.Operator: c["operator"],
        token.Operator.Word: keyword,
        token.Punctuation: c["operator"],
        token.Name: c["name"],
        token.Name.Builtin: c["builtin"],
        token.Name.Function: c["function"],
        token.Name.Class: c["type"],
        token.Name.Namespace: c["type"],
        token.Name.Exception: c["type"],
        token.Name.Decorator: c["builtin"],
        token.Name.Constant: c["number"],
        token.Name.Attribute: c["builtin"],
        token.Name.Tag: c["tag"],
        token.String: c["string"],
        token.String.Escape: c["number"],
        token.String.Interpol: c["number"],
        token.Number: c["number"],
        token.Generic.Heading: f"bold {c['builtin']}",
        token.Generic.Subheading: f"bold {c['type']}",
        token.Generic.Inserted: c["inserted"],
        token.Generic.Deleted: c["deleted"],
        token.Generic.Emph: "italic",
        token.Generic.Strong: "bold",
        token.Generic.Prompt: f"bold {c['comment']}",
        token.Generic.Error: c["error"],
        token.Error: c["error"],
    }
    class_name = "".join(part.capitalize() for part in theme.name.split("-")) + "Style"
    background = theme.colors["text.code-background"]
    shown = {} if is_ansi(background) else {"background_color": background}
    return type(class_name, (Style,), {**shown, "styles": styles})


def _keys(*sections: str) -> list[str]:
    return [f"{section}.{key}" for section in sections for key in USES[section]]


def _for_code(words: str) -> str:
    """Words of `styles` that Pygments has too, with a space behind them."""
    return "".join(f"{word} " for word in words.split() if word in ("bold", "italic", "underline"))


def for_pygments(color: str) -> str:
    return "noinherit" if color == TERMINAL_DEFAULT else _IN_PYGMENTS.get(color, color)


def for_prompt_toolkit(color: str) -> str:
    """The colour in a style of prompt_toolkit, which shares all names but one with Pygments."""
    return "default" if color == TERMINAL_DEFAULT else _IN_PYGMENTS.get(color, color)


def for_rich(color: str) -> str:
    return color.removeprefix("ansi_")


def from_pygments(name: str) -> str:
    """A colour that Pygments calls `ansi...`, in a style of Rich."""
    return _FROM_PYGMENTS[name]


def mixed(color: str, share: float, other: str) -> str:
    """`share` (0 to 1) of a colour in another. Of the terminal's colours nobody knows what they mix to: the first."""
    if is_ansi(color) or is_ansi(other):
        return color
    channels = ((int(color[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(one * share + two * (1 - share)):02x}" for one, two in channels)
