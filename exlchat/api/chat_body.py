"""The body of `/v1/chat/completions` as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exlchat.api.errors import ApiError, bad
from exlchat.api.fields import Fields
from exlchat.api.wishes import MOST_TOP, Wishes, read_wishes

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_MESSAGES = 10_000
_TOOL_FIELDS = ("tools", "functions")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`role` is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A request.

    Args:
        model: as it is called there; empty for the one that is loaded.
        messages: at least one.
        wishes: as of both endpoints.
        goes_on: the last message is the beginning of the answer.
        variables: what the template sees besides.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    wishes: Wishes
    goes_on: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict, hash=False)


def read_chat_body(fields: Fields) -> ChatBody:
    """Raises `ApiError` for a field that cannot be. What of them was not read, `fields.ignored` says then."""
    messages = read_messages(fields)
    for name in _TOOL_FIELDS:
        if fields.raw(name):
            raise bad(name, f"{name}: this server cannot call tools yet; leave them out")
    if fields.raw("tool_choice") not in (None, "none", "auto"):
        raise bad("tool_choice", "tool_choice: this server cannot call tools yet; leave it out")
    fields.raw("parallel_tool_calls")
    wishes = read_wishes(fields, top=_top(fields))
    return ChatBody(fields.text("model"), messages, wishes, _goes_on(fields, messages), template_variables(fields))


def read_messages(fields: Fields, name: str = "messages") -> tuple[ChatMessage, ...]:
    """At least one. Raises `ApiError`."""
    given = fields.listed(name)
    if not given:
        raise bad(name, f'{name} is empty; give at least one, as [{{"role": "user", "content": "Hello"}}]')
    if len(given) > _MOST_MESSAGES:
        raise bad(name, f"there are {len(given):,} messages; {_MOST_MESSAGES:,} is most")
    return tuple(_message(one, number) for number, one in enumerate(given))


def _message(value: Any, number: int) -> ChatMessage:
    if not isinstance(value, dict):
        raise bad("messages", f"messages[{number}] is no object; give its role and its content")
    said = Fields(value, f"messages[{number}].")
    role = said.text("role")
    if role in ("tool", "function") or value.get("tool_calls"):
        raise bad("messages", f"messages[{number}]: this server cannot call tools yet; leave them out")
    if role not in _ROLES:
        raise said.wrong("role", f"there is no {role!r}; it must be one of {', '.join(_ROLES)}")
    return ChatMessage(_ROLES[role], _content(said))


def _content(said: Fields) -> str:
    """A text, or its parts, which stand in lines of their own."""
    value = said.raw("content")
    if not isinstance(value, list):
        return said.text("content")
    return "\n".join(_part(said, one) for one in value)


def _part(said: Fields, value: Any) -> str:
    part = Fields(value if isinstance(value, dict) else {"type": "text", "text": value})
    kind = part.text("type", "text")
    if kind not in ("text", "input_text", "output_text"):
        raise _no_such_part(said, kind)
    return part.text("text")


def _no_such_part(said: Fields, kind: str) -> ApiError:
    return said.wrong("content", f"a part is of type {kind!r}; models here read text alone, and nothing is fetched")


def _top(fields: Fields) -> int | None:
    top = fields.whole("top_logprobs", None, 0, MOST_TOP)
    if fields.flag("logprobs"):
        return top or 0
    if top:
        raise bad("top_logprobs", "top_logprobs goes with logprobs: true; add that, or leave it out")
    return None


def _goes_on(fields: Fields, messages: tuple[ChatMessage, ...]) -> bool:
    """Unless it is said, an answer goes on with what stands where it would begin."""
    last = messages[-1].role == "assistant"
    new_turn = fields.flag("add_generation_prompt", default=not last)
    goes_on = fields.flag("continue_final_message", default=last and not new_turn)
    if goes_on and new_turn:
        raise bad(
            "add_generation_prompt",
            "continue_final_message goes on with a turn, and add_generation_prompt begins one; leave one of them out",
        )
    if goes_on and not last:
        raise bad("continue_final_message", "the last message is not the assistant's, so nothing can go on with it")
    return goes_on


def template_variables(fields: Fields) -> dict[str, Any]:
    """What the template is told; of `reasoning_effort` it is told too, though few ask."""
    effort = fields.text("reasoning_effort")
    told: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if effort == "none":
        told["enable_thinking"] = False
    return told | fields.mapping("chat_template_kwargs")
