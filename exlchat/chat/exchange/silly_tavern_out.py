"""A conversation as a chat of SillyTavern: JSON lines, the first about it, then a message each with its swipes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from exlchat.chat.exchange.branch import active_branch, model_of
from exlchat.chat.exchange.chain import no_empty
from exlchat.chat.model import ConversationTree, Message, settings_of
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.note import note_in
from exlchat.chat.speakers import is_group, said_by

_USER, _CHARACTER, _SYSTEM = "User", "Assistant", "System"
_OF_A_GROUP = "unused"
"""What SillyTavern has for both names of a chat of several characters."""


def lines(tree: ConversationTree) -> Iterator[str]:
    """The branch that is shown, alternatives of its messages as swipes; personas and groups are cards there."""
    branch = active_branch(tree)
    names = said_by(branch)
    said = list(zip(branch, names, strict=True))
    yield _line(_header(tree, branch, names))
    for message, name in said:
        if message.role == "system" and (not message.text.strip() or (message.persona and not is_group(message))):
            continue
        yield _line(_message(message, name, _alternatives(tree, message)))


def _header(tree: ConversationTree, branch: list[Message], names: list[str | None]) -> dict[str, Any]:
    note = note_in(settings_of(branch))
    metadata: dict[str, Any] = {}
    if note is not None:
        metadata = {
            "note_prompt": note.text,
            "note_interval": 1,
            "note_depth": note.depth,
            "note_position": 1,
            "note_role": 0,
        }
    of_role = {
        role: dict.fromkeys(name for one, name in zip(branch, names, strict=True) if one.role == role and name)
        for role in ("user", "assistant")
    }
    users, characters = list(of_role["user"]), list(of_role["assistant"])
    group = len(characters) > 1
    return {
        "user_name": _OF_A_GROUP if group else next(iter(users), _USER),
        "character_name": _OF_A_GROUP if group else next(iter(characters), _CHARACTER),
        "create_date": _date(tree.created_at),
        "chat_metadata": metadata,
    }


def _alternatives(tree: ConversationTree, message: Message) -> list[Message]:
    """Of an answer, in the order in which they came to be; of other messages it is alone."""
    if message.role != "assistant":
        return [message]
    same = (message.parent_id, message.role)
    return [one for one in tree.messages if (one.parent_id, one.role) == same and not one.deleted]


def _message(message: Message, name: str | None, alternatives: list[Message]) -> dict[str, Any]:
    usual = {"user": _USER, "assistant": _CHARACTER, "system": _SYSTEM}[message.role]
    content: dict[str, Any] = {
        "name": name or usual,
        "is_user": message.role == "user",
        "is_system": message.left_out,
        "send_date": _date(message.created_at),
        "mes": answer_parts(message).answer,
        "extra": {**_extra(message), **({"type": "narrator"} if message.role == "system" else {})},
    }
    if message.role == "assistant":
        content["swipe_id"] = [one.id for one in alternatives].index(message.id)
        content["swipes"] = [answer_parts(one).answer for one in alternatives]
        content["swipe_info"] = [{"send_date": _date(one.created_at), "extra": _extra(one)} for one in alternatives]
    return content


def _extra(message: Message) -> dict[str, Any]:
    return no_empty(model=model_of(message), reasoning=answer_parts(message).thinking)


def _date(seconds: float) -> str:
    """As SillyTavern writes it; the beginning of time for what no calendar has."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.fromtimestamp(0, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"
