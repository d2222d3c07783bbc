"""A whole conversation as plain values: every branch of it, for what reads and writes files of conversations.

The store reads and writes it in one transaction; importers make it, exporters read it, and neither knows SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exlchat.chat.conversation import AnswerRecord, MessageStatus, Role


@dataclass(frozen=True, slots=True)
class TreeMessage:
    """One message of the tree.

    Args:
        id: unique in its tree; the store gives new ones where they are taken.
        parent_id: of the message before it, which stands before it in `ConversationTree.messages`; `None` begins a
            conversation.
        thinking: what the model thought before the answer.
        persona: of a system message that a persona wrote: its name and what of it was frozen, a JSON object.
        edited_from: the message of which this is a changed copy.
        deleted: hidden, and brought back by an undo.
        foreign: what a file of another program says of it and we have no field for, a JSON object.
    """

    id: str
    parent_id: str | None
    role: Role
    text: str
    created_at: float
    status: MessageStatus = "complete"
    token_ids: tuple[int, ...] = ()
    record: AnswerRecord | None = None
    pinned: bool = False
    summary: str | None = None
    thinking: str | None = None
    persona: Mapping[str, Any] | None = None
    edited_from: str | None = None
    deleted: bool = False
    foreign: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """A conversation with all its branches.

    Args:
        messages: parents before children, siblings in the order in which they came to be.
        tip_id: of the branch that is shown; `None` before the first message.
        draft: what stands in the composer.
        foreign: what a file of another program says of it and we have no field for, a JSON object.
    """

    title: str | None
    created_at: float
    updated_at: float
    tip_id: str | None
    messages: tuple[TreeMessage, ...]
    id: str | None = None
    tags: tuple[str, ...] = ()
    pinned: bool = False
    archived: bool = False
    draft: str = ""
    foreign: Mapping[str, Any] = field(default_factory=dict)
