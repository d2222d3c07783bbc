"""JSON of cards."""

from __future__ import annotations

from typing import Any

from exlchat.chat.personas.persona import PersonaError
from exlchat.untrusted import json_reader

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
