"""What the keys and commands of the line mode do where it has words of its own. No terminal library here."""

from __future__ import annotations

from typing import Final

TYPING: Final = {
    "send": "Send the message, unless a ``` fence is open or the line ends with a backslash.",
    "new-line": "Start a new line in the message.",
    "earlier-prompt": "Bring back what was typed before, in other runs too.",
    "stop": "Stop the answer and keep its text; leave a message that is being changed as it is.",
}
"""Actions of the registry that belong to typing; their keys are those in force."""
LINE_KEYS: Final = (
    ("ctrl+c", "Stop the answer; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line."),
    ("ctrl+r", "Find what was typed before by a part of it."),
    ("right", "Take the dimmed suggestion."),
    ("tab", "Complete a command, or what follows it."),
    ("ctrl+x ctrl+e", "Write the message in $EDITOR."),
)
PLAIN_KEYS: Final = (
    ("enter", "Send the message, unless a ``` fence is open or the line ends with a backslash."),
    ("ctrl+c", "Stop the answer and keep its text; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line."),
)
IN_LINES: Final = {
    "copy-or-stop": "Stop the answer, or leave a message that is being changed as it is; twice in a row quits.",
    "sidebar": "List the conversations by number; /open N opens one.",
    "open": "Open the Nth conversation of the list, the newest being 1; without N, write the list.",
    "messages": "List the messages of this conversation, numbered from the end.",
    "find": "List the messages of this conversation that have TEXT, numbered from the end.",
    "compare": "Have N answers to the last message, else two, one after the other; /alternative N keeps one of them.",
    "tree": "List all branches of this conversation; with N show the Nth message of that list, and what is below it.",
    "search": "Search all conversations; /search #N goes to the Nth of what was found last.",
    "edit": "Change a message: in the line, in --plain in $EDITOR or by typing it anew; with N the Nth from the end.",
    "source": "Write a message as it was written: the last one, or the Nth from the end.",
    "prompt": "Write the exact prompt: the tokens of each message, what the cache holds, and the text.",
    "settings": "List all settings; KEY tells of one, KEY VALUE changes it, KEY default takes it out of the file.",
    "persona": "Have a persona speak from here on; without NAME, say who speaks and who there is.",
    "template": "Choose the prompt template; without NAME, list those there are.",
    "models": "List the models there are, and whether they fit; /model NAME loads one.",
}
"""What actions of the registry do in lines, where that is not what they do on a screen."""
