"""Values of a card, which may be of any kind: what makes no sense is as if it were not there."""

from __future__ import annotations

import math
from typing import Any

from exlchat.chat.personas.persona import PersonaError
from exlchat.untrusted import json_reader
from exlchat.untrusted.text import storable

_LARGEST = 10**9


def text_value(value: Any) -> str:
    """A text with plain newlines and without lone surrogates; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return storable(value).replace("\r\n", "\n")


def text_list(value: Any) -> tuple[str, ...]:
    """The texts of a list; a single text is split at its commas, as some programs write lists."""
    if isinstance(value, str):
        return tuple(part.strip() for part in text_value(value).split(",") if part.strip())
    return tuple(text_value(one) for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def count_value(value: Any) -> int | None:
    """A whole number from 0 on."""
    number = number_value(value)
    return None if number is None or number < 0 else int(number)


def number_value(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST and math.isfinite(value) else None


LARGEST = 16_000_000
"""Bytes."""


def read_json(data: bytes, where: str, *, largest: int = LARGEST) -> Any:
    """As `json_reader.read_json`; `where` names the file in errors.

    Raises:
        PersonaError: too large, too deep, another encoding, or not JSON.
    """
    try:
        return json_reader.read_json(data, most=largest)
    except json_reader.JsonError as error:
        raise PersonaError(f"{where}: {error}") from None
