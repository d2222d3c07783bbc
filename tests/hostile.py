"""Text that tries to steer a terminal, put wherever a stranger could put it; and what must not come of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.store.conversations import ConversationStore

SEQUENCES = (
    "\x1b]52;c;SE9TVElMRQ==\x07",  # the clipboard
    "\x1b]8;;http://hostile.example\x1b\\",  # a link that is not what it says
    "\x1bP$qq\x1b\\",  # a device control string, which terminals answer
    "\x1b_Ghostile\x1b\\",
    "\x1b]0;hostile\x07",
    "\x1b[66;66H",
    "\x1b[31;45;5m",
    "\x1bc",  # reset
    "\x9b77m",
    "\x9d52;c;SE9T\x9c",
    "\x08\x08\x0e\x7f\x85",
)
HIDDEN = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u200b\ufeff\u2060\u00ad\U000e0041"
SHAPES = "e\u0301\u0323 日本語 👩\u200d👩\u200d👧 a\u200db \u0e01\u0e33 🇩🇪 ﷽"
HOSTILE = "".join(SEQUENCES) + "".join(f"{one}h" for one in HIDDEN) + SHAPES
"""Every kind of it, in one line."""
NAME = "h\x1b]0;x\x07\x1b[31;45;5m\u202eevil\x9b7m"
"""What a file can be called."""
ANSWER = (
    f"# {HOSTILE}\n\n{HOSTILE} **{HOSTILE}** `{HOSTILE}` [{HOSTILE}](https://x.example/{NAME})\n\n- {HOSTILE}\n\n"
    f"> {HOSTILE}\n\n| {HOSTILE} | b |\n|---|---|\n| c | {HOSTILE} |\n\n```py{NAME}\n{HOSTILE}\n```\n\nAt the end.\n"
)

_ALLOWED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # what paints and moves
    r"|\x1b\]8;[^\x00-\x1f;]*;[^\x00-\x1f]*\x1b\\"  # links that the app makes, with an id
    r"|\x1b[78=>cM]|\x1b\([0B]|\x1b\]22;[a-z]*\x07"
)


def furnish(home: Path) -> None:
    """Conversations, personas, presets, prompt formats, themes and a model folder, hostile where they can be."""
    quoted = "".join(['"', *(f"\\U{ord(one):08X}" for one in HOSTILE), '"'])
    config = home / "config"
    for folder, name, text in (
        (
            "personas",
            "stranger.toml",
            f"name = {quoted}\ndescription = {quoted}\nsystem = {quoted}\ngreeting = {quoted}",
        ),
        ("personas", f"{NAME}.toml", "name = 7"),
        ("presets", "stranger.toml", f"description = {quoted}\ntemperature = 0.5"),
        ("presets", f"{NAME}.toml", f"{quoted} = 7"),
        ("templates", f"{NAME}.jinja", f"{{# {HOSTILE} #}}{{{{ messages[0].content }}}}"),
        ("themes", f"{NAME}.toml", f"name = {quoted}"),
        ("themes", "stranger.toml", f'name = "stranger"\ndescription = {quoted}'),
    ):
        file = config / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    model = home / "data" / "models" / NAME
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"architectures": [HOSTILE], "model_type": HOSTILE}))
    store = ConversationStore(home / "data" / "conversations.db")
    for number in range(2):
        store.write_tree(talk(number))
    store.close()


def talk(number: int) -> ConversationTree:
    """A conversation as an import brings it."""
    at = 1e9 + number
    return ConversationTree(
        f"{HOSTILE} {number}",
        at,
        at,
        f"a{number}",
        (
            Message(f"s{number}", None, "system", HOSTILE, at),
            Message(f"q{number}", f"s{number}", "user", f"{HOSTILE}\nwhere is it", at),
            Message(f"b{number}", f"q{number}", "assistant", ANSWER, at, thinking=HOSTILE),
            Message(f"a{number}", f"q{number}", "assistant", ANSWER, at),
        ),
        id=f"talk{number}",
        tags=(HOSTILE,),
    )


def harm_in(raw: bytes) -> list[str]:
    """What of it a terminal would obey or hide; a line each."""
    text = raw.decode("utf-8", "surrogateescape")
    found = [f"{one!r} is written as it is" for one in SEQUENCES if one in text]
    found += [f"U+{ord(one):04X} is written" for one in HIDDEN if one in text]
    rest = _ALLOWED.sub("", text)
    for at, one in enumerate(rest):
        if unicodedata.category(one) in ("Cc", "Cs") and one not in "\r\n":
            found.append(f"{one!r} in {rest[max(at - 30, 0) : at + 30]!r}")
    return found[:10]


def on_a_terminal(
    command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (84, 24), seconds: float = 60
) -> tuple[int, bytes]:
    """A program's exit code and every byte that it sent to its terminal."""
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PATH": os.environ["PATH"], **environment}
    process = subprocess.Popen(command, stdin=program, stdout=program, stderr=program, env=variables)
    os.close(program)
    pieces = []
    try:
        while piece := os.read(terminal, 65536):
            pieces.append(piece)
    except OSError:
        pass  # it has gone
    os.close(terminal)
    return process.wait(seconds), b"".join(pieces)
