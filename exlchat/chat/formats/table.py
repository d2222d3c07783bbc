"""A prompt format as a table of strings, in TOML: what stands around each message, without a line of Jinja.

about = "my fine-tune"
bos = "<s>"                      # the model's own unless given
default_system = "Be brief."     # without a system prompt
stop = ["</s>", "USER:"]

[system]
prefix = "SYSTEM: "
suffix = "\\n"
[user]
prefix = "USER: "
suffix = "\\n"
[assistant]
prefix = "ASSISTANT: "
suffix = "</s>\\n"
generation_prompt = "ASSISTANT:" # the assistant's prefix unless given
[thinking]
opening = "<think>"
closing = "</think>"
keep = false                     # whether later prompts show the thoughts of earlier answers
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exlchat.chat.plain_text import one_line
from exlchat.chat.thinking import ThinkingMarks

ROLES = ("system", "user", "assistant")
MOST_CHARACTERS = 20_000
"""Of one string; a default system prompt may be long."""

_KEYS = {"about": str, "bos": str, "default_system": str, "stop": list, "strip": bool, "thinking": dict}
_ROLE_KEYS = {"prefix": str, "suffix": str}
_ASSISTANT_KEYS = {**_ROLE_KEYS, "generation_prompt": str}
_THINKING_KEYS = {"opening": str, "closing": str, "keep": bool}
_ESCAPED = frozenset("{}%#\"'\\")
_NAMES = {str: "a text in quotes", bool: "true or false", list: "a list of texts", dict: "a table"}


class TableError(Exception):
    """What is wrong with a table, as the end of a line that names its file."""


@dataclass(frozen=True, slots=True)
class Table:
    """A format made of strings. `source` is its Jinja; the rest is as in `PromptFormat`."""

    source: str
    stop: tuple[str, ...] = ()
    thinking: ThinkingMarks | None = None
    keeps_thinking: bool = False


def from_table(text: str) -> Table:
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
    _check(content, "", {**_KEYS, **dict.fromkeys(ROLES, dict)})
    for role in ROLES:
        _check(content.get(role, {}), f"{role}.", _ASSISTANT_KEYS if role == "assistant" else _ROLE_KEYS)
    _check(content.get("thinking", {}), "thinking.", _THINKING_KEYS)
    for role in ("user", "assistant"):
        if not (content.get(role, {}).get("prefix") or content.get(role, {}).get("suffix")):
            raise TableError(f"says nothing of {role}; give [{role}] a prefix or a suffix")
    stop = content.get("stop", [])
    if not all(isinstance(one, str) and one for one in stop):
        raise TableError('stop holds something else than texts; write it as ["</s>"]')
    return Table(_source(content), tuple(stop), _thinking(content), content.get("thinking", {}).get("keep", False))


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


def _source(content: Mapping[str, Any]) -> str:
    """Jinja that writes the strings as they are: each stands in it as a quoted literal and cannot become code."""
    around = {role: [content.get(role, {}).get(part, "") for part in ("prefix", "suffix")] for role in ROLES}
    opening = content.get("assistant", {}).get("generation_prompt", around["assistant"][0])
    text = "message['content']" + (" | trim" if content.get("strip", False) else "")
    usual = content.get("default_system", "")
    lines = [
        "{%- set around = {" + ", ".join(f"'{role}': {_list(pair)}" for role, pair in around.items()) + "} %}",
        "{{- " + (_quoted(content["bos"]) if "bos" in content else "bos_token") + " }}",
    ]
    if usual:
        lines.append(
            "{{- "
            + " ~ ".join([_quoted(around["system"][0]), _quoted(usual), _quoted(around["system"][1])])
            + " if messages[0]['role'] != 'system' }}"
        )
    lines += [
        "{%- for message in messages %}",
        "    {{- around[message['role']][0] ~ (" + text + ") ~ around[message['role']][1] }}",
        "{%- endfor %}",
        "{{- " + _quoted(opening) + " if add_generation_prompt }}",
    ]
    return "\n".join(lines) + "\n"


def _list(texts: list[str]) -> str:
    return "[" + ", ".join(map(_quoted, texts)) + "]"


def _quoted(text: str) -> str:
    """A literal of Jinja. All that means something to Jinja is escaped: no end of a block can be found inside it."""
    plain = (
        one if one.isascii() and one.isprintable() and one not in _ESCAPED else f"\\U{ord(one):08x}" for one in text
    )
    return '"' + "".join(plain) + '"'
