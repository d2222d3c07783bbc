"""ChatGPT's export: `conversations.json`, a list of trees by node id, `current_node` their tip.

Nodes that are no part of the talk (empty system nodes, calls of tools and what they gave, thoughts) are no messages
here: they are kept, as the file has them, in the answer that they led to, thoughts as its thinking. An end that no
answer follows becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.chat.exchange.chain import Above, no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.limits import MESSAGES, ExchangeError
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import clean, content_parts, listing, mapping, name_of, rest, seconds_of, text_of
from exlchat.chat.model import ConversationTree, Message, Role

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_THOUGHTS = frozenset({"thoughts", "reasoning_recap"})
_KNOWN = ("id", "author", "create_time", "content", "parent", "children")


@dataclass(slots=True)
class _Node:
    ident: str
    parent: str | None
    message: Mapping[str, Any]
    role: Role | None = None
    text: str = ""
    children: int = 0

    @property
    def is_message(self) -> bool:
        return self.role is not None

    @property
    def content(self) -> Mapping[str, Any]:
        return mapping(self.message.get("content"))


def _items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, lambda value: isinstance(mapping(value).get("mapping"), dict))


def _convert(item: Any, notes: Notes) -> ConversationTree:
    fields = mapping(item)
    nodes = _nodes(mapping(fields.get("mapping")))
    if len(nodes) > MESSAGES:
        raise ExchangeError(f"it has {len(nodes)} nodes; at most {MESSAGES} are read")
    began = seconds_of(fields.get("create_time")) or notes.began
    for node in nodes.values():
        parent = nodes.get(node.parent or "")
        if parent is not None:
            parent.children += 1
    above = Above(nodes)
    messages = [_message(node, *above.of(node), began) for node in nodes.values() if node.is_message]
    for node in nodes.values():
        if not node.is_message and not node.children:
            parent_id, steps = above.of(node)
            if any(map(_says_something, (*steps, node))):
                messages.append(_message(node, parent_id, steps, began))
    tip = name_of(fields.get("current_node"))
    kept = {message.id for message in messages}
    if tip is not None and tip in nodes and tip not in kept:
        tip = above.of(nodes[tip])[0]
    return notes.whole(
        "chatgpt",
        messages,
        tip,
        title=name_of(fields.get("title")),
        created_at=began,
        updated_at=seconds_of(fields.get("update_time")),
        archived=fields.get("is_archived") is True,
        fields=rest(fields, "mapping", "title", "create_time", "update_time", "current_node", "is_archived"),
    )


def _nodes(entries: Mapping[str, Any]) -> dict[str, _Node]:
    """Every node; `role` is `None` for those that are no part of the talk."""
    nodes: dict[str, _Node] = {}
    for key, value in entries.items():
        fields = mapping(value)
        ident = name_of(key)
        if ident is None:
            continue
        message = mapping(fields.get("message"))
        node = _Node(ident, name_of(fields.get("parent")), message)
        node.role, node.text = _part_of_the_talk(message)
        nodes[ident] = node
    return nodes


def _part_of_the_talk(message: Mapping[str, Any]) -> tuple[Role | None, str]:
    content = mapping(message.get("content"))
    kind = name_of(content.get("content_type"))
    role = _ROLES.get(name_of(mapping(message.get("author")).get("role")) or "")
    if kind == "user_editable_context":
        instructions = (text_of(content.get(name)) for name in ("user_profile", "user_instructions"))
        text = "\n\n".join(part for part in instructions if part)
        return ("system" if text else None), text
    text = _text(content)
    to_a_tool = name_of(message.get("recipient")) not in (None, "all")
    if role is None or kind in _THOUGHTS or to_a_tool or (role != "user" and not text):
        return None, text
    return role, text


def _text(content: Mapping[str, Any]) -> str:
    text, _ = content_parts(content.get("parts"))
    return text or text_of(content.get("text")) or text_of(content.get("result")) or ""


def _says_something(node: _Node) -> bool:
    return bool(node.text) or bool(_thoughts(node))


def _message(node: _Node, parent: str | None, steps: Sequence[_Node], began: float) -> Message:
    thoughts = [thought for step in (*steps, node) for thought in _thoughts(step)]
    kept = [clean(step.message) for step in steps if step.message and _says_something(step)]
    content = node.content
    has_other = node.role is None or content_parts(content.get("parts"))[1]
    foreign = no_empty(
        model=name_of(mapping(node.message.get("metadata")).get("model_slug")),
        name=name_of(mapping(node.message.get("author")).get("name")),
        steps=kept,
        chatgpt=rest(node.message, *_KNOWN) | ({"content": clean(content)} if has_other else {}),
    )
    at = next((at for one in (node, *reversed(steps)) if (at := seconds_of(one.message.get("create_time")))), began)
    return Message(
        node.ident,
        parent,
        node.role or "assistant",
        node.text,
        at,
        thinking="\n\n".join(thoughts) or None,
        foreign=foreign,
    )


def _thoughts(node: _Node) -> list[str]:
    if node.content.get("content_type") != "thoughts":
        return []
    found = []
    for entry in listing(node.content.get("thoughts")):
        parts = (text_of(mapping(entry).get(name)) for name in ("summary", "content"))
        found.append("\n".join(part for part in parts if part))
    return [thought for thought in found if thought]


CHATGPT = Importer("chatgpt", "ChatGPT export", _items, _convert)
