"""JSON of strangers: bounded in size and depth, and never a surprise."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.plain_text import one_line

LARGEST = 16_000_000
"""Bytes."""

DEEPEST = 64
"""Lists and objects within each other; a real card has about ten."""


def read_json(data: bytes, where: str, *, largest: int = LARGEST) -> Any:
    """The value that `data` writes in UTF-8, UTF-16 or UTF-32; `where` names it in errors.

    Args:
        data: at most `largest` bytes.
        where: the file, for people.
        largest: number of bytes.

    Raises:
        PersonaError: too large, too deep, another encoding, or not JSON.
    """
    if len(data) > largest:
        raise PersonaError(f"{where}: its JSON is larger than {largest // 10**6} MB, which no card is")
    try:
        text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise PersonaError(f"{where}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise PersonaError(f"{where}: its JSON is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise PersonaError(f"{where}: not JSON: {one_line(str(error))}") from None
    if _depth(value) > DEEPEST:
        raise PersonaError(f"{where}: its JSON is nested deeper than {DEEPEST} levels")
    return value


def write_json(value: Any) -> bytes:
    """`value` as readable JSON in UTF-8, with a newline at its end; lone surrogates, which UTF-8 has not, escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", f"{text}\n").encode()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits[:20])


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level and depth <= DEEPEST:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = [one for one in inner if isinstance(one, dict | list)]
        depth += bool(inner) or bool(level)
    return depth
