"""Messages to show a prompt of: those of a file, or a little talk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from exlchat.chat.conversation import Role
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import JsonError, read_json, read_json_file
from exlchat.untrusted.text import storable

MOST_BYTES = 20_000_000

_LITTLE_TALK = [
    PromptMessage("system", "Be brief."),
    PromptMessage("user", "Who are you?"),
    PromptMessage("assistant", "A language model."),
    PromptMessage("user", "What can you do?"),
]


class MessagesError(Exception):
    """Messages that cannot be had: one line."""


def messages_of(file: Path | None) -> list[PromptMessage]:
    """What to show. Without a file it is a little talk with every role.

    Raises:
        MessagesError: the file holds no messages.
    """
    return _LITTLE_TALK if file is None else _of_file(file)


def _of_file(file: Path) -> list[PromptMessage]:
    try:
        if str(file) == "-":
            content = read_json(sys.stdin.buffer.read(MOST_BYTES + 1), most=MOST_BYTES)
        else:
            content = read_json_file(file, largest=MOST_BYTES, kind="list of messages")
    except JsonError as error:
        raise MessagesError(f"standard input: {error}") from None
    except UntrustedFileError as error:
        raise MessagesError(str(error)) from None
    if isinstance(content, dict):
        content = content.get("messages")
    if not isinstance(content, list) or not content:
        raise MessagesError(f'{file}: holds no list of messages; write [{{"role": "user", "content": "Hi"}}]')
    return [_message(file, number, one) for number, one in enumerate(content, start=1)]


def _message(file: Path, number: int, one: object) -> PromptMessage:
    role = one.get("role") if isinstance(one, dict) else None
    text = one.get("content") if isinstance(one, dict) else None
    if isinstance(text, list):
        parts = [part.get("text") for part in text if isinstance(part, dict) and part.get("type") == "text"]
        said = [part for part in parts if isinstance(part, str)]
        text = "\n".join(said) if len(said) == len(text) else None
    if role not in get_args(Role) or not isinstance(text, str):
        raise MessagesError(f"{file}: message {number} lacks a role (system, user or assistant) or a text as content")
    return PromptMessage(str(role), storable(text))
