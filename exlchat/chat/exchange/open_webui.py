"""Open WebUI's export: a list of chats, each with its messages by id under `chat.history`, `currentId` their tip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exlchat.chat.exchange.chain import no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import (
    clean,
    content_parts,
    listing,
    mapping,
    name_of,
    rest,
    seconds_of,
    split_thinking,
    text_of,
)
from exlchat.chat.model import ConversationTree, Message, Role

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_DETAILS, _DETAILS_END = '<details type="reasoning"', "</details>"
_KNOWN = ("id", "parentId", "childrenIds", "role", "content", "timestamp", "model")
_SYSTEM_ID = "system"


def _chat(item: object) -> Mapping[str, Any]:
    """The chat proper: an export wraps it, a chat that was downloaded by itself may not."""
    fields = mapping(item)
    return mapping(fields.get("chat")) or fields


def _items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, _is_chat)


def _is_chat(value: object) -> bool:
    chat = _chat(value)
    wrapped = "chat" in mapping(value) and isinstance(chat.get("messages"), list)
    return wrapped or isinstance(mapping(chat.get("history")).get("messages"), dict)


def _convert(item: Any, notes: Notes) -> ConversationTree:
    outer, chat = mapping(item), _chat(item)
    history = mapping(chat.get("history"))
    entries = list(mapping(history.get("messages")).items()) or _chained(listing(chat.get("messages")))
    began = seconds_of(outer.get("created_at")) or seconds_of(chat.get("timestamp")) or notes.began
    messages = [message for key, value in entries if (message := _message(key, mapping(value), began)) is not None]
    if len(messages) < len(entries):
        notes.leave_out(
            len(entries) - len(messages), f"{len(entries) - len(messages)} messages of no known role were left out"
        )
    system = text_of(mapping(chat.get("params")).get("system")) or text_of(chat.get("system"))
    if system and messages:
        messages = _under_system(system, messages, began)
    tags = [*listing(chat.get("tags")), *listing(mapping(outer.get("meta")).get("tags"))]
    return notes.whole(
        "open-webui",
        messages,
        name_of(history.get("currentId")) or messages[-1].id if messages else None,
        title=name_of(outer.get("title")) or name_of(chat.get("title")),
        created_at=began,
        updated_at=seconds_of(outer.get("updated_at")),
        tags=[tag for entry in tags if (tag := name_of(entry) or name_of(mapping(entry).get("name"))) is not None],
        pinned=outer.get("pinned") is True,
        archived=outer.get("archived") is True,
        fields=rest(outer, "chat", "title", "created_at", "updated_at", "pinned", "archived", "meta", "history")
        | no_empty(chat=rest(chat, "id", "title", "history", "messages", "tags", "timestamp", "system")),
    )


def _chained(messages: Sequence[Any]) -> list[tuple[str, Any]]:
    """Old exports have a list without parents."""
    chained: list[tuple[str, Any]] = []
    for number, value in enumerate(messages):
        fields = mapping(value)
        ident = name_of(fields.get("id")) or f"{number}"
        parent = fields.get("parentId", chained[-1][0] if chained else None)
        chained.append((ident, {**fields, "parentId": parent}))
    return chained


def _message(key: str, fields: Mapping[str, Any], began: float) -> Message | None:
    role = _ROLES.get(name_of(fields.get("role")) or "")
    ident = name_of(key) or name_of(fields.get("id"))
    if role is None or ident is None:
        return None
    text, has_other = content_parts(fields.get("content"))
    thinking, text = _thinking(text) if role == "assistant" else (None, text)
    thinking = text_of(fields.get("reasoning_content")) or thinking
    foreign = no_empty(
        model=name_of(fields.get("model")),
        **{"open-webui": rest(fields, *_KNOWN) | ({"content": clean(fields["content"])} if has_other else {})},
    )
    at = seconds_of(fields.get("timestamp")) or began
    return Message(ident, name_of(fields.get("parentId")), role, text, at, thinking=thinking, foreign=foreign)


def _thinking(text: str) -> tuple[str | None, str]:
    """Open WebUI puts thoughts before the answer, quoted in `<details type="reasoning">` with a summary."""
    begun = text.lstrip()
    end = begun.find(_DETAILS_END)
    if not begun.startswith(_DETAILS) or end < 0:
        return split_thinking(text)
    inside = begun[begun.find(">") + 1 : end]
    quoted = inside.partition("</summary>")[2] or inside
    lines = (line.removeprefix(">").removeprefix(" ") for line in quoted.strip().split("\n"))
    return "\n".join(lines).strip() or None, begun[end + len(_DETAILS_END) :].lstrip()


def _under_system(system: str, messages: Sequence[Message], began: float) -> list[Message]:
    taken = {message.id for message in messages}
    ident = _SYSTEM_ID
    while ident in taken:
        ident += "-"
    under = [replace(message, parent_id=ident) if message.parent_id is None else message for message in messages]
    return [Message(ident, None, "system", system, began), *under]


OPEN_WEBUI = Importer(
    "open-webui",
    "Open WebUI",
    _items,
    _convert,
    lambda item: mapping(item).get("title") or _chat(item).get("title"),
)
