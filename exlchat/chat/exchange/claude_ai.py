"""claude.ai's export: `conversations.json`, a list of conversations, each with a list of messages and their parents.

A message is a row of blocks. Calls of tools and what they gave are no text: they stay with the answer, as the file has
them. Files that somebody sent along have their text in the export, pictures only their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exlchat.chat.exchange.chain import Above, no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.limits import MESSAGES, ExchangeError
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import clean, content_parts, listing, mapping, name_of, rest, seconds_of, text_of
from exlchat.chat.model import ConversationTree, Message, Role

_ROLES: dict[str, Role] = {"human": "user", "user": "user", "assistant": "assistant", "system": "system"}
_ROOT = "00000000-0000-4000-8000-000000000000"
_PARENT = "parent_message_uuid"
_STEPS = frozenset({"tool_use", "tool_result", "token_budget"})
_THINKING = "thinking"
_KNOWN = ("uuid", "text", "content", "sender", "created_at", "updated_at", "index", _PARENT)
_KNOWN_OF_ALL = ("name", "created_at", "updated_at", "is_starred", "model", "current_leaf_message_uuid")


@dataclass(slots=True)
class _Node:
    ident: str
    parent: str | None
    role: Role | None
    entry: Mapping[str, Any]

    @property
    def is_message(self) -> bool:
        return self.role is not None


def _items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, lambda value: isinstance(mapping(value).get("chat_messages"), list))


def _convert(item: Any, notes: Notes) -> ConversationTree:
    fields = mapping(item)
    entries = [mapping(value) for value in listing(fields.get("chat_messages"))]
    if len(entries) > MESSAGES:
        raise ExchangeError(f"it has {len(entries)} messages; at most {MESSAGES} are read")
    began = seconds_of(fields.get("created_at")) or notes.began
    model = name_of(fields.get("model"))
    nodes = _nodes(entries)
    above = Above({node.ident: node for node in nodes})
    messages = [
        replace(
            _message(node, model if node.role == "assistant" else None),
            parent_id=above.of(node)[0],
            created_at=seconds_of(node.entry.get("created_at")) or began,
        )
        for node in nodes
        if node.is_message
    ]
    unknown = len(nodes) - len(messages)
    if unknown:
        notes.leave_out(unknown, f"{unknown} messages of no known sender were left out")
    newest = max(enumerate(messages), key=lambda one: (one[1].created_at, one[0]), default=None)
    return notes.whole(
        "claude-ai",
        messages,
        name_of(fields.get("current_leaf_message_uuid")) or (newest[1].id if newest else None),
        title=name_of(fields.get("name")),
        created_at=began,
        updated_at=seconds_of(fields.get("updated_at")),
        pinned=fields.get("is_starred") is True,
        fields=rest(fields, "chat_messages", *_KNOWN_OF_ALL),
    )


def _nodes(entries: Sequence[Mapping[str, Any]]) -> list[_Node]:
    """All messages with their parents. Old exports name none: a message stands behind the one before it."""
    nodes: list[_Node] = []
    for number, entry in enumerate(entries):
        parent = nodes[-1].ident if nodes else None
        if _PARENT in entry:
            parent = name_of(entry.get(_PARENT))
        role = _ROLES.get(name_of(entry.get("sender")) or "")
        ident = name_of(entry.get("uuid")) or f"{number}"
        nodes.append(_Node(ident, None if parent == _ROOT else parent, role, entry))
    return nodes


def _message(node: _Node, model: str | None) -> Message:
    entry = node.entry
    blocks = [mapping(block) for block in listing(entry.get("content"))]
    kinds = [name_of(block.get("type")) or "" for block in blocks]
    thoughts = [thought for block in blocks if (thought := text_of(block.get("thinking")))]
    said = [
        content_parts([block]) for block, kind in zip(blocks, kinds, strict=True) if kind not in (*_STEPS, _THINKING)
    ]
    texts = [text for text, _ in said if text] or [text_of(entry.get("text")) or ""]
    foreign = no_empty(
        model=model,
        steps=[clean(block) for block, kind in zip(blocks, kinds, strict=True) if kind in _STEPS],
        **{"claude-ai": rest(entry, *_KNOWN) | ({"content": clean(blocks)} if any(other for _, other in said) else {})},
    )
    return Message(
        node.ident,
        None,
        node.role or "assistant",
        "\n\n".join(part for part in (*texts, *_attached(entry)) if part),
        0.0,
        thinking="\n\n".join(thoughts) or None,
        foreign=foreign,
    )


def _attached(entry: Mapping[str, Any]) -> Iterator[str]:
    """The text of each file that was sent along, under its name; a long paste is one without a name."""
    named: set[str] = set()
    for attachment in map(mapping, listing(entry.get("attachments"))):
        name, content = name_of(attachment.get("file_name")), text_of(attachment.get("extracted_content"))
        if name is not None:
            named.add(name)
        if content:
            yield content if name is None else f"{name}:\n\n{_fenced(content)}"
        elif name is not None:
            yield f"[{name}]"
    for file in (*listing(entry.get("files")), *listing(entry.get("files_v2"))):
        name = name_of(mapping(file).get("file_name"))
        if name is not None and name not in named:
            named.add(name)
            yield f"[{name}]"


def _fenced(content: str) -> str:
    fence = "`" * max((len(run) + 1 for run in re.findall(r"`{3,}", content)), default=3)
    return f"{fence}\n{content.rstrip()}\n{fence}"


CLAUDE_AI = Importer("claude-ai", "claude.ai export", _items, _convert, lambda item: mapping(item).get("name"))
