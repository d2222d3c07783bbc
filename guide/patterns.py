"""The small language in which questions are written: `[a|b]` chooses, `{name}` and `<slot>` stand for word lists."""

from __future__ import annotations

import re
from random import Random

SHARED = {
    "conv": "conversation|chat|conversation|chat|session|thread|discussion|talk",
    "answer": "answer|reply|response|answer|output",
    "model": "model|llm|model|language model|ai model",
    "remove": "delete|remove|erase|get rid of|throw away|delete|trash|wipe|drop|discard|bin|scrap|clear away",
}
_SHARED = re.compile(r"\{([a-z]+)\}")
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"<([a-z]+)>")
_SPACES = re.compile(r" {2,}")


def expand(pattern: str, random: Random, slots: dict[str, list[str]] | None = None) -> str:
    """One sentence of the pattern, drawn with `random`. An unknown `<slot>` stays as it is."""
    text = _SHARED.sub(lambda match: f"[{SHARED[match[1]]}]", pattern)
    while True:
        chosen = _INNERMOST.sub(lambda match: random.choice(match[1].split("|")), text)
        if chosen == text:
            break
        text = chosen
    if slots:
        text = _SLOT.sub(lambda match: random.choice(slots[match[1]]) if match[1] in slots else match[0], text)
    return _SPACES.sub(" ", text).replace(" ?", "?").strip()
