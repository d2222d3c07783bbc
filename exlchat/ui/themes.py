"""One theme -> a Textual theme, a prompt_toolkit style and a Pygments style. Reading the files: `theme_files`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pygments import token
from pygments.style import Style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.theme import Theme

DEFAULT_THEME = "exlchat-dark"

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


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """One theme, checked. `colors` maps `background`, `roles.user`, `syntax.keyword` ... to `#rrggbb`."""

    name: str
    dark: bool
    colors: Mapping[str, str]

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
            variables=self._variables(),
        )

    def _variables(self) -> dict[str, str]:
        colors = self.colors
        own = {key.replace(".", "-"): value for key, value in colors.items() if not key.startswith("interface.")}
        return own | {
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
            "input-cursor-background": colors["interface.primary"],
            "input-cursor-foreground": colors["background"],
            "screen-selection-background": colors["selection"],
            "screen-selection-foreground": colors["foreground"],
            "block-cursor-background": colors["selection"],
            "block-cursor-foreground": colors["foreground"],
            "block-cursor-text-style": "bold",
            "block-cursor-blurred-background": colors["panel"],
            "block-cursor-blurred-foreground": colors["foreground"],
            "block-cursor-blurred-text-style": "none",
            "block-hover-background": colors["panel"],
            "footer-key-foreground": colors["interface.primary"],
        }

    def prompt_toolkit_style(self) -> dict[str, str]:
        """Style rules for `prompt_toolkit.styles.Style.from_dict`, for the line mode."""
        colors = self.colors
        return {
            "": colors["foreground"],
            "prompt": f"bold {colors['roles.user']}",
            "assistant": colors["roles.assistant"],
            "system": colors["roles.system"],
            "notice": colors["roles.notice"],
            "error": colors["interface.error"],
            "warning": colors["interface.warning"],
            "heading": f"bold {colors['text.heading']}",
            "link": f"underline {colors['text.link']}",
            "quote": f"italic {colors['text.quote']}",
            "code": f"bg:{colors['text.code-background']} {colors['text.code']}",
            "bottom-toolbar": f"noreverse bg:{colors['panel']} {colors['quiet']}",
            "completion-menu.completion": f"bg:{colors['panel']} {colors['foreground']}",
            "completion-menu.completion.current": f"bg:{colors['selection']} {colors['foreground']}",
            "auto-suggestion": colors["quiet"],
        }

    def pygments_style(self) -> type[Style]:
        """A Pygments style class for code blocks."""
        c = {key: self.colors[f"syntax.{key}"] for key in USES["syntax"]}
        styles = {
            token.Token: c["name"],
            token.Comment: f"italic {c['comment']}",
            token.Comment.Preproc: f"noitalic {c['keyword']}",
            token.Keyword: c["keyword"],
            token.Keyword.Type: c["type"],
            token.Keyword.Constant: c["number"],
            token.Operator: c["operator"],
            token.Operator.Word: c["keyword"],
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
        return type(class_name, (Style,), {"background_color": background, "styles": styles})
