"""Messages to show a prompt of: those of a file, or a little talk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_args

from exlchat.chat.conversation import Role
from exlchat.chat.plain_text import one_line, storable
from exlchat.chat.prompt_ids import PromptMessage

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
            text = sys.stdin.read(MOST_BYTES + 1)
        else:
            with file.open(encoding="utf-8-sig") as opened:
                text = opened.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise MessagesError(f"{file}: has more than {MOST_BYTES:,} characters; show a part of it")
        content = json.loads(text)
    except OSError as error:
        raise MessagesError(f"{file}: cannot be read ({(error.strerror or '').lower()}); give a JSON file") from None
    except RecursionError:
        raise MessagesError(f"{file}: is nested too deep; give a list of role and content") from None
    except ValueError as error:
        # Neither JSON nor UTF-8 come as other errors.
        reason = one_line(str(error), 100)
        raise MessagesError(f"{file}: is no JSON ({reason}); give a list of role and content") from None
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
