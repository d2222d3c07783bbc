"""Lore that was told with a message, and the message as the model sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from exlchat.chat.model import Role
from exlchat.chat.personas.lorebook import Lore, told_text


class Spoken(Protocol):
    """What of a message says who speaks: a `Message` or a `Message`."""

    @property
    def id(self) -> str:
        """Unique."""

    @property
    def role(self) -> Role:
        """Whose."""

    @property
    def text(self) -> str:
        """As it stands in the conversation."""

    @property
    def persona(self) -> Mapping[str, Any] | None:
        """What of a persona is kept with it."""


def text_for_model(message: Spoken) -> str:
    """What the model sees of a message: the lore that was told with it, then its text."""
    return told_text(message.text, noted_lore(message))


def noted_lore(message: Spoken) -> tuple[Lore, ...]:
    """The lore that was told with a message; what is damaged is passed over."""
    noted = message.persona.get("lore") if message.persona is not None else None
    if not isinstance(noted, list):
        return ()
    return tuple(
        Lore(one["entry"], one["text"])
        for one in noted
        if isinstance(one, dict) and isinstance(one.get("entry"), int) and isinstance(one.get("text"), str)
    )
