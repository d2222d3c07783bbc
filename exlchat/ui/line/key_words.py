"""What the keys of the line mode do, in words for its help and for the documents. No terminal library here."""

from __future__ import annotations

from typing import Final

LINE_KEYS: Final = (
    ("enter", "Send the message, unless a ``` fence is open or the line ends with a backslash."),
    ("alt+enter, ctrl+j, shift+enter", "Start a new line in the message."),
    ("escape", "Stop the answer and keep its text."),
    ("ctrl+c", "Stop the answer; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line. ctrl+q quits on any."),
    ("up, down", "Bring back what was typed before, in other runs too."),
    ("ctrl+r", "Find it by a part of it."),
    ("right", "Take the dimmed suggestion."),
    ("tab", "Complete a command, or what follows it."),
    ("ctrl+o, ctrl+x ctrl+e", "Write the message in $EDITOR."),
    ("f1", "Show keys and commands."),
)
PLAIN_KEYS: Final = (
    ("enter", "Send the message, unless a ``` fence is open or the line ends with a backslash."),
    ("ctrl+c", "Stop the answer and keep its text; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line."),
)
