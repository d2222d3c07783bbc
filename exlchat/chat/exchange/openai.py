"""OpenAI's messages, in and out: `[{"role", "content"}]`, bare or under `messages`, in one JSON file or a line each.

Also ShareGPT's older form of the same: `{"conversations": [{"from", "value"}]}`, with its names of the roles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from exlchat.chat.exchange.branch import active_branch, model_of
from exlchat.chat.exchange.chain import Chain, Draft, no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.limits import ExchangeError
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
from exlchat.chat.model import ConversationTree, Role
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import char_of

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_STEPS = frozenset(
    {"tool", "function", "function_call", "function_response", "observation", "tool_call", "tool_result"}
)
_KNOWN = ("role", "reasoning_content", "reasoning", "model", "name")
_TIMES = ("created_at", "timestamp", "create_time", "created", "date")


def dumps(trees: Sequence[ConversationTree]) -> str:
    """The active branches as JSON: `{"messages"}` for one conversation, a list of them for several.

    Thinking is left out: servers that speak this form refuse it in what is sent to them.
    """
    whole = [_exported(tree) for tree in trees]
    return json.dumps(whole[0] if len(whole) == 1 else whole, ensure_ascii=False, indent=1) + "\n"


def _exported(tree: ConversationTree) -> dict[str, Any]:
    branch = active_branch(tree)
    models = [model for message in branch if (model := model_of(message)) is not None]
    messages = [
        {"role": message.role, **no_empty(name=char_of(message)), "content": answer_parts(message).answer}
        for message in branch
    ]
    return no_empty(title=tree.title, model=models[-1] if models else None) | {"messages": messages}


def _is_message(value: object) -> bool:
    fields = mapping(value)
    return name_of(fields.get("role")) in {*_ROLES, *_STEPS} and bool(
        {"content", "tool_calls", "function_call"} & fields.keys()
    )


def _items(parsed: Parsed) -> Sequence[Any]:
    if parsed.yaml:
        return []
    found = objects_that(parsed, lambda value: any(map(_is_message, listing(mapping(value).get("messages"))[:5])))
    if found:
        return found
    if parsed.by_line and any(map(_is_message, parsed.values[:5])):
        return [parsed.values]
    return objects_that(parsed, lambda value: any(map(_is_message, listing(value)[:5])))


def _convert(item: Any, notes: Notes) -> ConversationTree:
    fields = mapping(item)
    messages = item if isinstance(item, list) else listing(fields.get("messages"))
    chain = Chain(next((at for name in _TIMES if (at := seconds_of(fields.get(name))) is not None), notes.began))
    system = text_of(fields.get("system"))
    if system:
        chain.add(Draft("system", system))
    _add_messages(messages, chain, notes, default_model=name_of(fields.get("model")))
    return notes.of_chain(
        "openai", chain, title=name_of(fields.get("title")), fields=rest(fields, "messages", "title", "system")
    )


def _add_messages(messages: Sequence[Any], chain: Chain, notes: Notes, default_model: str | None) -> None:
    skipped = 0
    for value in messages:
        fields = mapping(value)
        said = name_of(fields.get("role"))
        role = _ROLES.get(said or "")
        text, has_other = content_parts(fields.get("content"))
        if said in _STEPS or (role == "assistant" and not text and fields.keys() & {"tool_calls", "function_call"}):
            chain.step(clean(fields))
        elif role is None:
            skipped += 1
        else:
            chain.add(_draft(role, text, fields, default_model, keep_content=has_other))
    if skipped:
        notes.leave_out(skipped, f"{skipped} messages of no known role were left out")


def _draft(role: Role, text: str, fields: Mapping[str, Any], model: str | None, *, keep_content: bool) -> Draft:
    thinking = text_of(fields.get("reasoning_content")) or text_of(fields.get("reasoning"))
    if role == "assistant" and not thinking:
        thinking, text = split_thinking(text)
    known = [*_KNOWN, *_TIMES, *([] if keep_content else ["content"])]
    foreign = no_empty(
        model=name_of(fields.get("model")) or model if role == "assistant" else None,
        name=name_of(fields.get("name")),
        openai=rest(fields, *known),
    )
    at = next((at for name in _TIMES if (at := seconds_of(fields.get(name))) is not None), None)
    return Draft(role, text, at, thinking or None, foreign)


def _sharegpt_items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, lambda value: any(map(_is_turn, listing(mapping(value).get("conversations"))[:5])))


def _is_turn(value: object) -> bool:
    return isinstance(mapping(value).get("from"), str) or _is_message(value)


def _convert_sharegpt(item: Any, notes: Notes) -> ConversationTree:
    fields = mapping(item)
    turns = [mapping(turn) for turn in listing(fields.get("conversations"))]
    if not any(map(_is_turn, turns)):
        raise ExchangeError("it has no turns with from and value")
    chain = Chain(notes.began)
    system = text_of(fields.get("system"))
    if system:
        chain.add(Draft("system", system))
    renamed = [_as_message(turn) for turn in turns]
    _add_messages(renamed, chain, notes, default_model=name_of(fields.get("model")))
    title = name_of(fields.get("title"))
    return notes.of_chain("sharegpt", chain, title=title, fields=rest(fields, "conversations", "system", "title"))


def _as_message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """`from` and `value` under OpenAI's names; what is not said stays away."""
    names = {"from": "role", "value": "content"}
    message = {names.get(name, name): value for name, value in turn.items()}
    if isinstance(message.get("role"), str):
        message["role"] = message["role"].strip().lower()
    return message


OPENAI = Importer("openai", "OpenAI messages", _items, _convert)
SHAREGPT = Importer("sharegpt", "ShareGPT", _sharegpt_items, _convert_sharegpt)
