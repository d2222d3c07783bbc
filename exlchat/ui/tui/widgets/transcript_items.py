"""What the transcript is given to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exlchat.chat.conversation import MessageStatus as Status

__all__ = ["Role", "Status", "TranscriptItem"]

Role = Literal["system", "user", "assistant", "thinking", "notice"]


@dataclass(frozen=True, slots=True)
class TranscriptItem:
    """One message as it stands.

    Args:
        key: names the message in later calls; unique within a transcript.
        role: the assistant's text is read as Markdown, all other text is shown as it was typed; "thinking" is what
            the assistant thought before it spoke.
        text: the whole text so far.
        footer: one line below it, such as its statistics; plain text.
        status: "streaming" while more text may come; "partial" marks the message as incomplete.
    """

    key: str
    role: Role
    text: str
    footer: str = ""
    status: Status = "complete"
