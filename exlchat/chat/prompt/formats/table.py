"""A prompt format as a table of strings, in TOML: what stands around each message, without a line of Jinja.

about = "my fine-tune"
bos = "<s>"                      # the model's own unless given
default_system = "Be brief."     # without a system prompt
stop = ["</s>", "{{user}}:"]

[system]
prefix = "SYSTEM: "
suffix = "\\n"
without = ""                     # what stands there without a system prompt, where no default_system is given
[user]
prefix = "USER: "
suffix = "\\n"
first_prefix = "[INST] "         # where it is the first message; the prefix unless given
last_prefix = "USER (now): "     # where it is the last question, the first or not; as before unless given
[assistant]
prefix = "ASSISTANT: "
suffix = "</s>\\n"
first_prefix = "Once, "          # as above
generation_prompt = "ASSISTANT:" # the assistant's prefix unless given
[names]                          # where a persona speaks; else names are not written
prefix = "{{name}}: "            # before each text of the user and the model
generation_prompt = "{{char}}:"  # in the place of the assistant's
[thinking]
opening = "<think>"
closing = "</think>"
keep = false                     # whether later prompts show the thoughts of earlier answers

What strings may hold of names: `table_source`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exlchat.chat.prompt.formats.table_source import source_of
from exlchat.llm.thought_splitter import ThinkingMarks
from exlchat.untrusted.text import one_line

MOST_CHARACTERS = 20_000
"""Of one string; a default system prompt may be long."""

MOST_STOPS = 200
"""Each is looked for in all that a model says."""

_KEYS = {"about": str, "bos": str, "default_system": str, "stop": list, "strip": bool}
_PARTS: dict[str, dict[str, type]] = {
    "system": {"prefix": str, "suffix": str, "without": str},
    "user": {"prefix": str, "suffix": str, "first_prefix": str, "last_prefix": str},
    "assistant": {"prefix": str, "suffix": str, "first_prefix": str, "generation_prompt": str},
    "names": {"prefix": str, "generation_prompt": str},
    "thinking": {"opening": str, "closing": str, "keep": bool},
}
_NAMES = {str: "a text in quotes", bool: "true or false", list: "a list of texts", dict: "a table"}


class TableError(Exception):
    """What is wrong with a table, as the end of a line that names its file."""


@dataclass(frozen=True, slots=True)
class FormatTable:
    """A format made of strings. `source` is its Jinja; the rest is as in `PromptFormat`."""

    source: str
    stop: tuple[str, ...] = ()
    thinking: ThinkingMarks | None = None
    keeps_thinking: bool = False


def from_table(text: str) -> FormatTable:
    """The format that a TOML text describes.

    Raises:
        TableError: it is no TOML, or a key is unknown, missing or of a wrong type.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"is not TOML: {one_line(str(error))}") from None
    except RecursionError:
        raise TableError("is nested too deep; a prompt format is a table of strings") from None
    _check(content, "", {**_KEYS, **dict.fromkeys(_PARTS, dict)})
    for part, known in _PARTS.items():
        _check(content.get(part, {}), f"{part}.", known)
    for role in ("user", "assistant"):
        if role not in content:
            raise TableError(f"says nothing of {role}; give [{role}] a prefix or a suffix")
    if not any(content[role].get(part) for role in ("user", "assistant") for part in ("prefix", "suffix")):
        raise TableError("says nothing around messages; give [user] and [assistant] a prefix or a suffix")
    if content.get("default_system") and content.get("system", {}).get("without"):
        raise TableError("says twice what stands without a system prompt; give default_system or system.without")
    stop = content.get("stop", [])
    if not all(isinstance(one, str) and one for one in stop):
        raise TableError('stop holds something else than texts; write it as ["</s>"]')
    if len(stop) > MOST_STOPS:
        raise TableError(f"stop holds more than {MOST_STOPS} texts; keep those that matter")
    return FormatTable(
        source_of(content), tuple(stop), _thinking(content), content.get("thinking", {}).get("keep", False)
    )


def _check(table: Mapping[str, Any], where: str, known: Mapping[str, type]) -> None:
    for key, value in table.items():
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {where}{nearest[0]}?" if nearest else f"there are {', '.join(known)}"
            raise TableError(f"has an unknown key {one_line(where + key, 60)}; {hint}")
        if not isinstance(value, known[key]):
            raise TableError(f"{where}{key} must be {_NAMES[known[key]]}, not {one_line(repr(value), 40)}")
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            raise TableError(f"{where}{key} has more than {MOST_CHARACTERS:,} characters; shorten it")


def _thinking(content: Mapping[str, Any]) -> ThinkingMarks | None:
    table = content.get("thinking")
    if table is None:
        return None
    try:
        return ThinkingMarks(table.get("opening", ""), table.get("closing", ""))
    except ValueError:
        raise TableError("thinking needs opening and closing; give both, as <think> and </think>") from None
