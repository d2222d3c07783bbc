"""What people type who know another chat program, where nothing here has that name: a line on what does it here."""

from __future__ import annotations

from typing import Final

_NOTES = "a persona or a character card brings them: /persona NAME"
_FILES = "name a file with @ in a message, as @notes.txt, and its text goes with it"
_NO_PICTURES = "models here read text and no pictures"
_NO_TOOLS = "models here call no tools; /code saves what they write"
_LINES = "shift+enter, alt+enter or ctrl+j make a new line"

HERE: Final = {
    "/ask": "write the message; /persona NAME chooses who answers",
    "/attach": _FILES,
    "/bg": "/theme NAME chooses the colours",
    "/compress": "/set context_policy summarise, and a full context is summarised; /summary shows it",
    "/continue_last": "exlchat -c opens the last conversation",
    "/delswipe": "/cut takes away the alternative that is shown, /undo brings it back",
    "/embed": _FILES,
    "/file": _FILES,
    "/fragment": _FILES,
    "/image": _NO_PICTURES,
    "/impersonate": "write it yourself; /edit changes any message, the model's too",
    "/key": "none is needed: models run on this machine",
    "/keys": "none is needed: models run on this machine; /help has the keys of the keyboard",
    "/login": "none is needed: models run on this machine",
    "/lorebook": _NOTES,
    "/mcp": _NO_TOOLS,
    "/memory": "/pin keeps a message in sight of the model, /system says what always holds",
    "/multi": _LINES,
    "/multiline": _LINES,
    "/n": "/compare N has N answers side by side",
    "/nothink": "/think off",
    "/pull": "exlchat pull ORG/NAME fetches a model, in a shell; /models lists those there are",
    "/rag": _FILES,
    "/read": _FILES,
    "/run": "nothing is run here; /code saves the code, and /model NAME loads a model",
    "/sendas": "/edit changes any message, the model's too; /begin TEXT has answers begin so",
    "/starter": _NOTES,
    "/sys": "/system TEXT says what holds for the conversation",
    "/tool": _NO_TOOLS,
    "/tools": _NO_TOOLS,
    "/tts": "answers are text",
    "/user": "/settings user_name NAME says what personas call you",
    "/voice": "answers are text",
    "/web": "nothing is fetched from the web",
    "/wi": _NOTES,
    "/world": _NOTES,
    "/wordwrap": "lines always wrap",
}
"""By the name of the command, in small letters."""

SET: Final = {
    "format": "/schema FILE has answers be JSON",
    "history": "what is said is always kept; exlchat ask --no-save keeps nothing",
    "nohistory": "exlchat ask --no-save keeps nothing",
    "noformat": "/schema off",
    "nothink": "/think off",
    "noverbose": "/stats shows figures only when asked",
    "nowordwrap": "lines always wrap",
    "num_ctx": "/model set context N, for when the model is loaded next",
    "num_gpu": "a model is on the card as a whole, or with --device cpu on the processor",
    "num_predict": "/set max_tokens N",
    "quiet": "/stats shows figures only when asked",
    "repeat_last_n": "/set penalty_range N",
    "repeat_penalty": "/set repetition_penalty X",
    "system": "/system TEXT",
    "verbose": "/stats shows the figures of the last answer",
    "wordwrap": "lines always wrap",
}
"""By the name of what is set."""

BARE: Final = {
    "!edit": "/editor",
    "!end": "Enter",
    "!fragment": "@ and the name of a file",
    "!multi": "shift+enter, alt+enter or ctrl+j",
    ":q": "/quit",
    ":wq": "/quit",
    "exit": "/quit",
    "quit": "/quit",
}
"""Words that are commands without a slash, and what is the same here."""
