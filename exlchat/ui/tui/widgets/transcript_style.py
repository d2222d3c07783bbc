"""The transcript's parts by name, their looks by default, and how CSS becomes styles for the renderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from rich.style import Style

from exlchat.ui.render.markdown.styles import TextStyles
from exlchat.ui.tui.widgets.transcript_items import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.widget import Widget

    from exlchat.config.schema import Underscores
    from exlchat.ui.render.markdown.styles import CodeStyle
    from exlchat.ui.tui.widgets.transcript_items import Status

_PARTS: Final = (
    "user",
    "assistant",
    "system",
    "notice",
    "incomplete",
    "found",
    "footer",
    "badge",
    "strong",
    "emphasis",
    "strike",
    "code",
    "link",
    "address",
    "heading",
    "quote",
    "frame",
    "marker",
    "table-head",
    "code-block",
    "code-label",
)
COMPONENT_CLASSES: Final = frozenset(f"transcript--{part}" for part in _PARTS)

TRANSCRIPT_CSS: Final = """
MessageView {
    overflow: hidden scroll;
    scrollbar-size-vertical: 1;
    background: $background;
    color: $foreground;

    & > .transcript--user { color: $primary; }
    & > .transcript--assistant { color: $foreground 30%; }
    & > .transcript--system { color: $secondary; }
    & > .transcript--notice { color: $warning; }
    & > .transcript--incomplete { color: $error; }
    & > .transcript--found { color: $background; background: $warning; }
    & > .transcript--footer { color: $foreground 50%; }
    & > .transcript--badge { background: $primary; color: $background; text-style: bold; }
    & > .transcript--strong { text-style: bold; }
    & > .transcript--emphasis { text-style: italic; }
    & > .transcript--strike { text-style: strike; }
    & > .transcript--code { color: $accent; background: $surface; }
    & > .transcript--link { color: $primary; text-style: underline; }
    & > .transcript--address { color: $foreground 50%; }
    & > .transcript--heading { color: $primary; text-style: bold; }
    & > .transcript--quote { color: $foreground 70%; }
    & > .transcript--frame { color: $foreground 30%; }
    & > .transcript--marker { color: $primary; }
    & > .transcript--table-head { text-style: bold; }
    & > .transcript--code-block { color: $foreground; background: $surface; }
    & > .transcript--code-label { color: $foreground 50%; }
}
"""


@dataclass(frozen=True)
class TranscriptStyles:
    text: TextStyles
    footer: Style
    badge: Style
    incomplete: Style
    found: Style
    roles: Mapping[Role, Style]

    UNSTYLED: ClassVar[TranscriptStyles]

    def mark(self, role: Role, status: Status) -> Style:
        return self.roles[role] if status in ("complete", "streaming") else self.incomplete


TranscriptStyles.UNSTYLED = TranscriptStyles(
    TextStyles(),
    Style.null(),
    Style.null(),
    Style.null(),
    Style(reverse=True),
    dict.fromkeys(get_args(Role), Style.null()),
)


def read_styles(widget: Widget, code_style: CodeStyle, underscores: Underscores) -> TranscriptStyles:
    base = Style(color=widget.rich_style.color, bgcolor=widget.rich_style.bgcolor)

    def part(name: str) -> Style:
        return base + _own(widget, name)

    text = TextStyles(
        text=base,
        strong=_own(widget, "strong"),
        emphasis=_own(widget, "emphasis"),
        strike=_own(widget, "strike"),
        code=_own(widget, "code"),
        link=_own(widget, "link"),
        address=_own(widget, "address"),
        heading=_own(widget, "heading"),
        quote=_own(widget, "quote"),
        frame=_own(widget, "frame"),
        marker=_own(widget, "marker"),
        table_head=_own(widget, "table-head"),
        code_block=part("code-block"),
        code_label=_own(widget, "code-label"),
        code_style=code_style,
        underscores=underscores,
    )
    roles: dict[Role, Style] = {
        "user": part("user"),
        "assistant": part("assistant"),
        "system": part("system"),
        "notice": part("notice"),
        "thinking": part("notice"),
        "name": part("assistant"),
    }
    return TranscriptStyles(text, part("footer"), part("badge"), part("incomplete"), _own(widget, "found"), roles)


def _own(widget: Widget, part: str) -> Style:
    """What CSS says of a part itself, with half-transparent colours mixed into the background."""
    name = f"transcript--{part}"
    own = widget.get_component_rich_style(name, partial=True)
    mixed = widget.get_component_rich_style(name)
    colors = Style(color=mixed.color if own.color else None, bgcolor=mixed.bgcolor if own.bgcolor else None)
    return own + colors
