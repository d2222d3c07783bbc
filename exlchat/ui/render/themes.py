"""One theme -> a Textual theme, a prompt_toolkit style and a Pygments style. Reading the files: `theme_files`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pygments import token
from pygments.style import Style

from exlchat.ui.render.theme_colors import for_prompt_toolkit, for_pygments, is_ansi, mixed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.theme import Theme

DEFAULT_THEME = "exlchat-dark"

BASES = {True: "exlchat-dark", False: "exlchat-light"}
"""By brightness, the theme that gives what a user's file leaves out."""

PALETTE_NEEDED = ("background", "surface", "panel", "line", "foreground", "quiet", "selection", "sun", "glow")
USES = {
    "interface": ("primary", "secondary", "accent", "success", "warning", "error"),
    "roles": ("user", "assistant", "system", "notice"),
    "text": ("heading", "link", "quote", "code", "code-background"),
    "syntax": (
        *("comment", "keyword", "type", "function", "name", "string", "number", "operator", "builtin", "tag"),
        *("inserted", "deleted", "error"),
    ),
}
STYLES = {
    "heading": "bold",
    "link": "underline",
    "quote": "italic",
    "code": "none",
    "comment": "italic",
    "keyword": "none",
    "quiet": "none",
    "selection": "none",
}
"""What may be told apart without colours, and how it is where a theme says nothing."""

_FOCUS_SHARE = 0.7
"""How much of the primary colour is in the frame of what has the focus, where the theme does not say `focus`."""
_VEIL_ALPHA = "b3"


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """One theme, checked.

    `colors` maps `background`, `roles.user`, `syntax.keyword` ... to `#rrggbb` or a name such as `ansi_blue`; `styles`
    maps each key of `STYLES` to words such as `bold underline`.
    """

    name: str
    dark: bool
    colors: Mapping[str, str]
    description: str = ""
    styles: Mapping[str, str] = field(default_factory=STYLES.copy)

    @property
    def ansi(self) -> bool:
        """Whether some colours are the terminal's own."""
        return any(is_ansi(color) for color in self.colors.values())

    def textual_theme(self) -> Theme:
        """The Textual theme; colours beyond Textual's own become variables such as `$roles-user`."""
        from textual.theme import Theme

        colors = self.colors
        return Theme(
            name=self.name,
            dark=self.dark,
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
            ansi=self.ansi,
            variables=self._variables(),
        )

    def _variables(self) -> dict[str, str]:
        colors = self.colors
        own = {key.replace(".", "-"): colors[key] for key in (*PALETTE_NEEDED, *_keys("roles", "text", "syntax"))}
        styles = {f"{key}-style": value for key, value in self.styles.items()}
        background, quiet = colors["background"], self.styles["quiet"]
        # A colour of the terminal cannot be half transparent.
        veil = "transparent" if is_ansi(background) else f"{background}{_VEIL_ALPHA}"
        focus = colors.get("focus") or mixed(colors["interface.primary"], _FOCUS_SHARE, background)
        cursor = background if self.ansi else colors["interface.primary"]
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
                "block-cursor-text-style": "bold" if self.styles["selection"] == "none" else self.styles["selection"],
                "block-cursor-blurred-background": colors["panel"],
                "block-cursor-blurred-foreground": colors["foreground"],
                "block-cursor-blurred-text-style": "none",
                "block-hover-background": colors["panel"],
                "footer-key-foreground": colors["interface.primary"],
            }
        )

    def prompt_toolkit_style(self) -> dict[str, str]:
        """Style rules for `prompt_toolkit.styles.Style.from_dict`, for the line mode."""
        c = {key: for_prompt_toolkit(color) for key, color in self.colors.items()}
        styles = {key: "" if words == "none" else f"{words} " for key, words in self.styles.items()}
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

    def pygments_style(self) -> type[Style]:
        """A Pygments style class for code blocks."""
        c = {key: for_pygments(self.colors[f"syntax.{key}"]) for key in USES["syntax"]}
        keyword, comment = (f"{_for_code(self.styles[key])}{c[key]}" for key in ("keyword", "comment"))
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
        class_name = "".join(part.capitalize() for part in self.name.split("-")) + "Style"
        background = self.colors["text.code-background"]
        shown = {} if is_ansi(background) else {"background_color": background}
        return type(class_name, (Style,), {**shown, "styles": styles})


def _keys(*sections: str) -> list[str]:
    return [f"{section}.{key}" for section in sections for key in USES[section]]


def _for_code(words: str) -> str:
    """Words of `styles` that Pygments has too, with a space behind them."""
    return "".join(f"{word} " for word in words.split() if word in ("bold", "italic", "underline"))
