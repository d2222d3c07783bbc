"""What the transcript is given to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exlchat.chat.model import MessageStatus as Status

__all__ = ["Role", "Status", "TranscriptItem", "View"]

Role = Literal["system", "user", "assistant", "thinking", "notice", "name"]

View = Literal["whole", "folded", "source"]
"""How a message is shown: as it is meant, as one line, or as it was written."""


@dataclass(frozen=True, slots=True)
class TranscriptItem:
    """One message as it stands.

    Args:
        key: names the message in later calls; unique within a transcript.
        role: the assistant's text is read as Markdown, all other text is shown as it was typed; "thinking" is what
            the assistant thought before it spoke, "name" who says what stands right below.
        text: the whole text so far.
        footer: one line below it, such as its statistics; plain text.
        fold: one line that stands for the text while it is folded; "" takes its beginning.
        folded: whether it is folded at first.
        status: "streaming" while more text may come; "partial" marks the message as incomplete.
    """

    key: str
    role: Role
    text: str
    footer: str = ""
    status: Status = "complete"
    fold: str = ""
    folded: bool = False
