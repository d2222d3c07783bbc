"""JSON of cards."""

from __future__ import annotations

from typing import Any

from exlchat.chat import untrusted_json
from exlchat.chat.personas.persona import PersonaError

LARGEST = 16_000_000
"""Bytes."""


def read_json(data: bytes, where: str, *, largest: int = LARGEST) -> Any:
    """As `untrusted_json.read_json`; `where` names the file in errors.

    Raises:
        PersonaError: too large, too deep, another encoding, or not JSON.
    """
    try:
        return untrusted_json.read_json(data, most=largest)
    except untrusted_json.JsonError as error:
        raise PersonaError(f"{where}: {error}") from None
