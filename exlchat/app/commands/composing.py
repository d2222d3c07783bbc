"""What is done where messages are typed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.commands import action

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="Writing")

command(
    "send",
    "Send",
    "Send the message.",
    keys=("enter",),
    place="composer",
    in_palette=False,
    in_lines="Send the message, unless a ``` fence is open or the line ends with a backslash.",
)
command(
    "new-line",
    "New line",
    "Start a new line in the message; a backslash at the end of the line and then Enter does the same.",
    keys=("shift+enter", "alt+enter", "ctrl+j"),
    place="composer",
    in_palette=False,
    in_lines="Start a new line in the message.",
)
command(
    "earlier-prompt",
    "Earlier prompts",
    "Bring back what you asked before, here and then elsewhere, from the first or last line of the message.",
    keys=("up", "down"),
    place="composer",
    in_palette=False,
    in_lines="Bring back what was typed before, in other runs too.",
)
command(
    "history",
    "Find what you typed",
    "Find what you typed before, in earlier runs too, and take it into the message.",
    "/history",
    "[TEXT]",
    keys=("ctrl+r",),
)


@command(
    "editor",
    "Write in your editor",
    "Write the message in your editor ($VISUAL or $EDITOR).",
    "/editor",
    keys=("ctrl+o",),
)
def write_in_editor(view: View, _: str) -> None:
    view.write_in_editor()
