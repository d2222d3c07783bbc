"""A conversation with tools as a prompt format is told of it, and what an answer is held to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exlchat.api.tools.families import PLAIN, Family, family_of
from exlchat.api.tools.offered import Offered
from exlchat.api.turn import Turn
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.chat.prompt_format import PromptFormat, without_marks
from exlchat.llm.constraint import Constraint
from exlchat.llm.info import ModelInfo

_PREFACE = """You can call these functions, each described by a JSON schema of its parameters:

{tools}

To call one, write nothing but this, once for each call, and wait for what it returns:

<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """How tools are told to one format.

    Args:
        family: how calls are written.
        messages: the conversation.
        variables: what the template is told beside it.
        opening: the text that the answer has to begin with, tokens by their texts; "" where it may say anything.
        constraint: what holds behind `opening`, or behind the family's own opening mark where it begins to call.
    """

    family: Family
    messages: list[PromptMessage]
    variables: dict[str, Any] = field(default_factory=dict)
    opening: str = ""
    constraint: Constraint | None = None


def told(
    said: Sequence[tuple[Turn, PromptMessage]], offered: Offered, form: PromptFormat, info: ModelInfo
) -> ToolPrompt:
    """In the way of the family that the template is of; in a way of our own where it knows no tools.

    Args:
        said: what the client sent, and as what it goes into the prompt but for tools.
    """
    family = family_of(form.source)
    if family is None:
        found = ToolPrompt(PLAIN, _as_text(said, offered))
    else:
        tools = [_unmarked(one.as_told(), info) for one in offered.told]
        messages = [_message(turn, message, info) for turn, message in said]
        found = ToolPrompt(family, messages, {"tools": tools} if tools else {})
    return _held(found, offered)


def _held(prompt: ToolPrompt, offered: Offered) -> ToolPrompt:
    """With what the answer is held to."""
    if not offered.tools:
        return prompt
    family, opening = prompt.family, ""
    grammar = family.grammar(offered.tools, parallel=offered.parallel)
    if offered.forced and grammar is None:
        # What no grammar writes is asked for as the plain object; it is read as well.
        family = Family(family.name, (), "")
        grammar = family.grammar(offered.tools, parallel=False)
    elif offered.forced:
        opening = family.opening
    elif not family.opening:
        grammar = None
    constraint = None if grammar is None else Constraint("grammar", grammar)
    return ToolPrompt(family, prompt.messages, prompt.variables, opening, constraint)


def _message(turn: Turn, message: PromptMessage, info: ModelInfo) -> PromptMessage:
    more: dict[str, Any] = {}
    if turn.calls:
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in turn.calls
        ]
        more["tool_calls"] = calls
    if turn.role == "tool":
        more |= {"tool_call_id": turn.call_id, "name": turn.name}
    return replace(message, more=_unmarked(more, info)) if more else message


def _as_text(said: Sequence[tuple[Turn, PromptMessage]], offered: Offered) -> list[PromptMessage]:
    found = [_plain(turn, message) for turn, message in said]
    if not offered.told:
        return found
    listed = "\n".join(json.dumps(one.as_told()["function"], ensure_ascii=False) for one in offered.told)
    preface = _PREFACE.format(tools=listed)
    if found and found[0].role == "system":
        return [PromptMessage("system", f"{found[0].text}\n\n{preface}"), *found[1:]]
    return [PromptMessage("system", preface), *found]


def _plain(turn: Turn, message: PromptMessage) -> PromptMessage:
    if turn.role == "tool":
        return PromptMessage("user", f"<tool_response>\n{turn.text}\n</tool_response>")
    if not turn.calls:
        return message
    calls = "\n".join(
        f"<tool_call>\n{json.dumps({'name': one.name, 'arguments': one.arguments}, ensure_ascii=False)}\n</tool_call>"
        for one in turn.calls
    )
    return PromptMessage(turn.role, "\n".join(filter(None, (turn.text, calls))))


def _unmarked(value: Any, info: ModelInfo) -> Any:
    """Without the special tokens that a stranger's schema or argument may hold: the template would write them out."""
    if isinstance(value, str):
        return without_marks(value, info)
    if isinstance(value, dict):
        return {without_marks(str(key), info): _unmarked(one, info) for key, one in value.items()}
    if isinstance(value, list):
        return [_unmarked(one, info) for one in value]
    return value
