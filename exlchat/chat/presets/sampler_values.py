"""Values of other programs' presets as values of ours. What cannot be taken over is a `ValueError`, whose text nobody
reads: the key is kept and named with its value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from exlchat.chat.presets.control_values import from_plain
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS
from exlchat.untrusted.text import storable


def number(name: str, value: Any) -> Any:
    """A number that means the same here. -1 is how some backends write "all"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    whole = name == "max_tokens" or CONTROLS[name].kind == "whole"
    if whole and value == -1 and name != "max_tokens":
        return 0
    try:
        found: Any = int(value) if whole else float(value)
    except OverflowError as error:
        raise ValueError("too large") from error
    if found != value:
        raise ValueError("not a whole number, or none that can be compared")
    SamplingOverrides(**{name: found})
    return found


def per_ten_thousand(name: str, value: Any) -> Any:
    """Both programs write these probabilities in units of 1e-4."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise ValueError("not a number")
    return number(name, value / 10_000)


def breakers(name: str, value: Any) -> tuple[str, ...]:
    """Texts in quotes with commas between them, with brackets or without."""
    return _taken(name, _json_list(value))


def id_list(name: str, value: Any) -> tuple[int, ...]:
    found = _json_list(value)
    if not all(isinstance(one, int) for one in found):
        raise ValueError("not ids")
    return _taken(name, found)


def word_bans(name: str, value: Any) -> tuple[str | int, ...]:
    """A line each: ids in brackets, or a word. What stands in quotes is banned as a text (`phrase_bans`)."""
    found: list[str | int] = []
    for line in _lines(value):
        if _is_quoted(line):
            continue
        if line.startswith("["):
            found += id_list(name, line)
        elif '"' in line or len(line.split()) > 1:
            raise ValueError("more than a token")
        else:
            found.append(line)
    return _taken(name, found)


def phrase_bans(value: Any) -> tuple[str, ...]:
    """Of the same lines, the texts in quotes."""
    return tuple(storable(line[1:-1]) for line in _lines(value) if _is_quoted(line))


def phrases_alone(value: Any) -> tuple[str, ...]:
    """Where nothing but texts in quotes can be taken over."""
    if not all(map(_is_quoted, _lines(value))):
        raise ValueError("tokens")
    return phrase_bans(value)


def schema(value: Any) -> Constraint:
    if not isinstance(value, Mapping):
        raise ValueError("not a schema")
    return Constraint("json_schema", json.dumps(value))


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return storable(value)


def texts(value: Any) -> tuple[str, ...]:
    """Texts, of which empty ones say nothing."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("not texts")
    return tuple(storable(one) for one in value if one)


def count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("not a number of tokens")
    return value


def _lines(value: Any) -> list[str]:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return list(filter(None, map(str.strip, value.splitlines())))


def _is_quoted(line: str) -> bool:
    return len(line) > 2 and line.startswith('"') and line.endswith('"')


def biases(name: str, value: Any) -> tuple[tuple[str | int, float], ...]:
    """Entries with a text and a value; the text is ids in brackets, itself in braces, or has a space put before it."""
    found: list[tuple[str | int, float]] = []
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("text"), str):
            raise ValueError("not an entry")
        text, bias = entry["text"], entry.get("value")
        if not text or not bias:
            continue
        if text.startswith("[") and text.endswith("]"):
            found += [(one, bias) for one in id_list("banned_tokens", text)]
        else:
            verbatim = text.startswith("{") and text.endswith("}")
            found.append((text[1:-1] if verbatim else f" {text}", bias))
    return _taken(name, found)


def _json_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise ValueError("not a list")
    text = value.strip()
    try:
        found = json.loads(text if text.startswith("[") else f"[{text}]")
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found


def _taken(name: str, found: list[Any]) -> tuple[Any, ...]:
    value: tuple[Any, ...] = from_plain(name, found)
    return value
