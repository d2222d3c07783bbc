"""Programs whose sessions are a list and a few settings: exllamav3's chat, exui, aichat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exlchat.chat.exchange.chain import Chain, Draft, no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import (
    clean,
    content_parts,
    listing,
    mapping,
    name_of,
    rest,
    split_thinking,
    text_of,
)
from exlchat.chat.model import ConversationTree, Role

_EXUI_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant"}
_AICHAT_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_WITH_NAMES = "Chat-RP"


def _exllamav3_items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(
        parsed, lambda value: isinstance(mapping(value).get("context"), list) and "system_prompt" in value
    )


def _convert_exllamav3(item: Any, notes: Notes) -> ConversationTree:
    """`{"system_prompt", "banned_strings", "context": [[prompt, answer or null]]}`."""
    fields = mapping(item)
    chain = Chain(notes.began)
    _add_system(chain, fields.get("system_prompt"))
    for pair in listing(fields.get("context")):
        sides = [*listing(pair), None, None][:2]
        for role, text in zip(("user", "assistant"), map(text_of, sides), strict=True):
            if text is not None:
                _add_answer_or_prompt(chain, "user" if role == "user" else "assistant", text, {})
    return notes.of_chain("exllamav3", chain, fields=rest(fields, "system_prompt", "context"))


def _exui_items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, lambda value: "session_uuid" in mapping(value) and "history" in mapping(value))


def _convert_exui(item: Any, notes: Notes) -> ConversationTree:
    """`{"session_uuid", "name", "history": [{"author", "text"}], "settings"}`; role play has names before the texts."""
    fields = mapping(item)
    settings = mapping(fields.get("settings"))
    names = [name for role in listing(settings.get("roles")) if (name := name_of(role)) is not None]
    names = names if settings.get("prompt_format") == _WITH_NAMES else []
    chain = Chain(notes.began)
    _add_system(chain, settings.get("system_prompt"))
    skipped = 0
    for block in map(mapping, listing(fields.get("history"))):
        role, text = _EXUI_ROLES.get(name_of(block.get("author")) or ""), text_of(block.get("text"))
        if role is None or text is None:
            skipped += 1
            continue
        speaker = next((name for name in names if text.startswith(f"{name}:")), None)
        text = text if speaker is None else text[len(speaker) + 1 :].lstrip(" ")
        _add_answer_or_prompt(chain, role, text, no_empty(name=speaker, exui=rest(block, "author", "text")))
    if skipped:
        notes.leave_out(skipped, f"{skipped} blocks without author or text were left out")
    return notes.of_chain("exui", chain, title=name_of(fields.get("name")), fields=rest(fields, "history", "name"))


def _aichat_items(parsed: Parsed) -> Sequence[Any]:
    return parsed.values if parsed.yaml and isinstance(mapping(parsed.values[0]).get("messages"), list) else []


def _convert_aichat(item: Any, notes: Notes) -> ConversationTree:
    """`{model, temperature, ..., compressed_messages, messages: [{role, content}]}` in YAML."""
    fields = mapping(item)
    model = name_of(fields.get("model"))
    chain = Chain(notes.began)
    skipped = 0
    # What was summarised stands before what the summary took the place of; the summary is among the messages.
    for value in (*listing(fields.get("compressed_messages")), *listing(fields.get("messages"))):
        entry = mapping(value)
        said = name_of(entry.get("role"))
        role = _AICHAT_ROLES.get(said or "")
        if said == "tool" or (role == "assistant" and isinstance(entry.get("content"), dict)):
            chain.step(clean(entry))
        elif role is None:
            skipped += 1
        else:
            text, has_other = content_parts(entry.get("content"))
            known = ("role",) if has_other else ("role", "content")
            written_by = model if role == "assistant" else None
            _add_answer_or_prompt(chain, role, text, no_empty(model=written_by, aichat=rest(entry, *known)))
    if skipped:
        notes.leave_out(skipped, f"{skipped} messages of no known role were left out")
    return notes.of_chain("aichat", chain, fields=rest(fields, "messages", "compressed_messages"))


def _add_system(chain: Chain, value: object) -> None:
    text = text_of(value)
    if text:
        chain.add(Draft("system", text))


def _add_answer_or_prompt(chain: Chain, role: Role, text: str, foreign: Mapping[str, Any]) -> None:
    thinking, text = split_thinking(text) if role == "assistant" else (None, text)
    chain.add(Draft(role, text, None, thinking, foreign))


EXLLAMAV3 = Importer("exllamav3", "exllamav3 chat", _exllamav3_items, _convert_exllamav3, lambda _: None)
EXUI = Importer("exui", "exui session", _exui_items, _convert_exui, lambda item: mapping(item).get("name"))
AICHAT = Importer("aichat", "aichat session", _aichat_items, _convert_aichat, lambda _: None)
