"""The body of `/v1/chat/completions` as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exlchat.api.errors import ApiError, bad
from exlchat.api.fields import MOST_BYTES, Fields
from exlchat.api.tools.offered import Offered, read_tools
from exlchat.api.turn import CalledTool, Turn
from exlchat.api.wishes import MOST_TOP, Wishes, read_wishes
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import storable

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MOST_CALLS = 256
_MOST_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A request.

    Args:
        model: as it is called there; empty for the one that is loaded.
        messages: at least one.
        offered: what the model may call.
        wishes: as of both endpoints.
        goes_on: the last message is the beginning of the answer.
        variables: what the template sees besides.
    """

    model: str
    messages: tuple[Turn, ...]
    wishes: Wishes
    offered: Offered = field(default_factory=Offered)
    goes_on: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict, hash=False)


def read_chat_body(fields: Fields) -> ChatBody:
    """Raises `ApiError` for a field that cannot be. What of them was not read, `fields.ignored` says then."""
    messages = read_messages(fields)
    offered = read_tools(fields)
    wishes = read_wishes(fields, top=_top(fields))
    goes_on = _goes_on(fields, messages)
    if offered.forced and (goes_on or "constraint" in wishes.speech):
        raise bad(
            "tool_choice",
            "tool_choice wants a call, and a begun answer or response_format something else; leave one of them out",
        )
    return ChatBody(fields.text("model"), messages, wishes, offered, goes_on, template_variables(fields))


def read_messages(fields: Fields, name: str = "messages") -> tuple[Turn, ...]:
    """At least one. Raises `ApiError`."""
    given = fields.listed(name)
    if not given:
        raise bad(name, f'{name} is empty; give at least one, as [{{"role": "user", "content": "Hello"}}]')
    if len(given) > _MOST_MESSAGES:
        raise bad(name, f"there are {len(given):,} messages; {_MOST_MESSAGES:,} is most")
    return _named([_message(one, number) for number, one in enumerate(given)])


def _message(value: Any, number: int) -> Turn:
    if not isinstance(value, dict):
        raise bad("messages", f"messages[{number}] is no object; give its role and its content")
    said = Fields(value, f"messages[{number}].")
    role = said.text("role")
    if role not in _ROLES:
        raise said.wrong("role", f"there is no {role!r}; it must be one of {', '.join(_ROLES)}")
    calls = _calls(said) if role == "assistant" else ()
    return Turn(_ROLES[role], _content(said), calls, said.text("tool_call_id"), said.text("name"))


def _calls(said: Fields) -> tuple[CalledTool, ...]:
    """Those that the assistant made."""
    given = said.listed("tool_calls") or []
    if len(given) > _MOST_CALLS:
        raise said.wrong("tool_calls", f"there are {len(given):,}; {_MOST_CALLS} is most")
    found = []
    for number, value in enumerate(given):
        call = Fields(value if isinstance(value, dict) else {}, f"messages[].tool_calls[{number}].")
        function = call.nested("function")
        name = function.text("name")
        if not name:
            raise function.wrong("name", "there is none; give the name of the function that was called")
        found.append(CalledTool(call.text("id"), name, _arguments(function.raw("arguments"))))
    return tuple(found)


def _arguments(value: Any) -> Any:
    """What was called with: templates want it as an object."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        return read_json(value.encode("utf-8", "replace"), most=MOST_BYTES)
    except JsonError:
        return storable(value)


def _named(turns: list[Turn]) -> tuple[Turn, ...]:
    """With the names of those tools that answer, where only the ids of the calls say whose they are."""
    names = {call.id: call.name for turn in turns for call in turn.calls}
    return tuple(
        replace(turn, name=names.get(turn.call_id, "")) if turn.role == "tool" and not turn.name else turn
        for turn in turns
    )


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


def _goes_on(fields: Fields, messages: tuple[Turn, ...]) -> bool:
    """Unless it is said, an answer goes on with what stands where it would begin."""
    last = messages[-1].role == "assistant"
    new_turn = fields.flag("add_generation_prompt", default=not last)
    goes_on = fields.flag("continue_final_message", default=last and not new_turn)
    if goes_on and not last:
        raise bad(
            "continue_final_message",
            "continue_final_message: the last message is not the assistant's, so nothing can go on; leave it out",
        )
    if goes_on and new_turn:
        raise bad(
            "add_generation_prompt",
            "continue_final_message goes on with a turn, and add_generation_prompt begins one; leave one of them out",
        )
    return goes_on


def template_variables(fields: Fields) -> dict[str, Any]:
    """What the template is told; of `reasoning_effort` it is told too, though few ask."""
    effort = fields.text("reasoning_effort")
    told: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if effort == "none":
        told["enable_thinking"] = False
    return told | fields.mapping("chat_template_kwargs")
