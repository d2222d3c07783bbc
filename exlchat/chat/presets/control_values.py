"""Values of sampling controls as TOML files have them, as they are typed, and as they are shown.

A list is typed with commas or spaces between its entries, or as JSON. An entry with a space, comma, quote or equals
sign in it stands in quotes, and `\\n` is a new line. A token is a text, or an id in bare digits; a bias stands behind
an `=`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import checked_value, order_with_last
from exlchat.untrusted.text import did_you_mean, one_line

OFF = "off"
"""Typed, it is the value that switches a control off; so are "none" and "default"."""
_OFF = (OFF, "none", "default")
_SHOWN_CELLS = 60
_ENTRY = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*"|[^\s,"=]+)(?:=(?P<number>[^\s,]+))?(?:\s*,\s*|\s+|$)')


def require_control(name: str) -> None:
    """Refuses what is no control.

    Raises:
        ValueError: there is no control of this name; with the nearest one.
    """
    if name not in CONTROLS:
        hint = did_you_mean(name, CONTROLS, "there are")
        raise ValueError(f"there is no sampling control {one_line(name, 40)!r}; {hint}")


def from_plain(name: str, value: object) -> Any:
    """A value of a file as `SamplingSettings` holds it.

    Args:
        name: of the control.
        value: a number; a list; of `logit_bias` a list of pairs, or a table of texts with a number each; of `order` all
            steps, or those that come last.

    Raises:
        ValueError: it cannot be, in one line.
    """
    if CONTROLS[name].kind == "biases" and isinstance(value, Mapping):
        value = tuple(value.items())
    if CONTROLS[name].kind == "order" and isinstance(value, list | tuple):
        value = order_with_last(list(value))
    return checked_value(name, value)


def to_plain(name: str, value: Any) -> Any:
    """As a file has it, as shortly as it can be written; `from_plain` gives the value back."""
    match CONTROLS[name].kind:
        case "biases":
            if value and all(isinstance(token, str) for token, _ in value):
                return dict(value)
            return [[token, bias] for token, bias in value]
        case "order":
            return list(last_steps(value))
        case "texts" | "tokens":
            return list(value)
    return value


def from_text(name: str, text: str) -> Any:
    """A typed value as `SamplingSettings` holds it.

    Raises:
        ValueError: it cannot be, in one line.
    """
    control, text = CONTROLS[name], text.strip()
    if text.lower() in _OFF:
        return control.off
    if control.kind in ("number", "whole"):
        try:
            number = int(text) if control.kind == "whole" else float(text)
        except ValueError:
            raise ValueError(f"{name} is {one_line(text, 40)!r}; it must be {control.range}") from None
        return checked_value(name, number)
    if text[:1] in ("[", "{"):
        try:
            return from_plain(name, json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} is no list that can be read: {error}; mend it") from None
    return from_plain(name, _entries(name, text, CONTROLS[name].kind))


def to_text(name: str, value: Any) -> str:
    """As one would type it; `from_text` gives the value back."""
    match CONTROLS[name].kind:
        case "number":
            short = f"{value:g}"
            return short if float(short) == value else repr(value)
        case "whole":
            return str(value)
        case "biases":
            entries: Iterable[str] = (f"{_entry(token)}={to_text('temperature', bias)}" for token, bias in value)
        case "order":
            entries = last_steps(value)
        case _:
            entries = map(_entry, value)
    return ", ".join(entries) or ("[]" if CONTROLS[name].off else OFF)


def texts_from(name: str, text: str) -> tuple[str, ...]:
    """A typed list of texts; `name` stands in errors.

    Raises:
        ValueError: it is none, in one line.
    """
    text = text.strip()
    if text.lower() in _OFF:
        return ()
    if text.startswith("["):
        try:
            texts = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} is no list that can be read: {error}; mend it") from None
        if not all(isinstance(one, str) for one in texts):
            raise ValueError(f"{name} holds what is no text; put each in quotes")
        return tuple(texts)
    return tuple(_entries(name, text, "texts"))


def texts_to(texts: Iterable[str]) -> str:
    return ", ".join(map(_entry, texts)) or OFF


def shown(name: str, value: Any) -> str:
    match CONTROLS[name].kind:
        case "number":
            return f"{value:g}"
        case "order":
            last = last_steps(value)
            return f"… → {' → '.join(last)}" if last else "the usual one"
    return one_line(to_text(name, value) if value or value == 0 else "none", _SHOWN_CELLS)


def last_steps(order: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest steps that, put at the end, make the usual order into this one."""
    for at in range(len(order), -1, -1):
        if order_with_last(order[at:]) == order:
            return order[at:]
    raise AssertionError("an order names every step")


def _entry(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return json.dumps(value, ensure_ascii=not value.isprintable())


def _entries(name: str, text: str, kind: str) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        if entry is None or (entry["number"] is not None) != (kind == "biases"):
            raise ValueError(
                f"{name} is not like a list at {one_line(text[at:], 30)!r}; it is typed like {_like(kind)}"
            )
        token = _token(name, entry["text"]) if kind in ("tokens", "biases") else _unquoted(name, entry["text"])
        found.append((token, _bias(name, entry["number"])) if kind == "biases" else token)
        at = entry.end()
    return found


def _like(kind: str) -> str:
    return {
        "biases": '" the"=-2, 42=5',
        "tokens": '" the", 42',
        "order": "min_p, temperature",
    }.get(kind, '"\\n", ":"')


def _token(name: str, text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else _unquoted(name, text)


def _unquoted(name: str, text: str) -> str:
    quoted = text if text.startswith('"') else f'"{text}"'
    try:
        return str(json.loads(quoted))
    except json.JSONDecodeError:
        raise ValueError(f"{name} has {one_line(text, 30)}, which is no text; a backslash is typed twice") from None


def _bias(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} has {one_line(text, 30)!r} behind =; there must be a number") from None
