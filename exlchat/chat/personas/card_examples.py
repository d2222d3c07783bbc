"""The example dialogues of a card, one text with `<START>` between them, as exchanges and back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from exlchat.chat.personas.persona import Example

_START = re.compile(r"<START>", re.IGNORECASE)
_USER = ("{{user}}", "<user>", "you")
_CHAR = ("{{char}}", "<bot>", "<char>")


def examples_of(text: str, name: str) -> tuple[Example, ...]:
    """The exchanges in `text`; a line that begins with neither speaker goes on with the one before."""
    found: list[Example] = []
    for block in _START.split(text):
        found += _exchanges(_turns(block, name.casefold()))
    return tuple(found)


def text_of_examples(examples: Sequence[Example]) -> str:
    """The text from which `examples_of` makes the same, as long as no line in it looks like a speaker's."""
    blocks = []
    for example in examples:
        turns = (("{{user}}", example.user), ("{{char}}", example.assistant))
        blocks.append("\n".join(["<START>", *(f"{who}: {said}" for who, said in turns if said)]))
    return "\n".join(blocks)


def _turns(block: str, name: str) -> list[tuple[str, str]]:
    """(role, text) of one dialogue; what stands before the first speaker is the character's."""
    turns: list[tuple[str, list[str]]] = []
    for line in block.strip().split("\n"):
        speaker, colon, rest = line.partition(":")
        who = speaker.strip().casefold()
        if colon and who in _USER:
            turns.append(("user", [rest.strip()]))
        elif colon and who in (*_CHAR, name):
            turns.append(("assistant", [rest.strip()]))
        elif turns:
            turns[-1][1].append(line)
        else:
            turns.append(("assistant", [line]))
    return [(role, "\n".join(lines).strip()) for role, lines in turns]


def _exchanges(turns: Sequence[tuple[str, str]]) -> list[Example]:
    found: list[Example] = []
    asked = ""
    for role, text in turns:
        if not text:
            continue
        if role == "user":
            asked = f"{asked}\n\n{text}" if asked else text
        else:
            found.append(Example(asked, text))
            asked = ""
    return [*found, Example(asked, "")] if asked else found
