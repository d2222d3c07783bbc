"""A message of a conversation, as a client gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call that stands in the conversation. `arguments` is what its JSON says; a text where it is none."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Args:
        role: system, user, assistant or tool.
        calls: of the assistant.
        call_id, name: of a tool's: which call it answers, and whose.
    """

    role: str
    text: str
    calls: tuple[CalledTool, ...] = ()
    call_id: str = ""
    name: str = ""
