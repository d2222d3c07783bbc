"""The branch of a tree that is shown, and its alternatives."""

from __future__ import annotations

from dataclasses import dataclass

from exlchat.chat.model import ConversationTree, Message


def active_branch(tree: ConversationTree) -> list[Message]:
    """The messages that end at the tip, oldest first, without deleted ones."""
    by_id = {message.id: message for message in tree.messages}
    branch: list[Message] = []
    at = tree.tip_id
    while at is not None and at in by_id and len(branch) <= len(by_id):
        branch.append(by_id[at])
        at = by_id[at].parent_id
    return [message for message in reversed(branch) if not message.deleted]


@dataclass(frozen=True, slots=True)
class AlternativePlace:
    """Which of how many alternatives a message is, from 1."""

    number: int
    of: int


def places(tree: ConversationTree) -> dict[str, AlternativePlace]:
    """Of every message that is not deleted, among those of the same role under the same parent."""
    groups: dict[tuple[str | None, str], list[str]] = {}
    for message in tree.messages:
        if not message.deleted:
            groups.setdefault((message.parent_id, message.role), []).append(message.id)
    return {ident: AlternativePlace(number, len(ids)) for ids in groups.values() for number, ident in enumerate(ids, 1)}


def model_of(message: Message) -> str | None:
    """Who wrote an answer: from our record of it, or from the program that it was imported from."""
    if message.record is not None:
        return message.record.model
    named = message.foreign.get("model")
    return named if isinstance(named, str) else None
