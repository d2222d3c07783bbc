"""text-generation-webui's history: pairs of a prompt and an answer, with versions of each under `metadata`."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from exlchat.chat.exchange.chain import Chain, Draft, no_empty
from exlchat.chat.exchange.importing import Importer, Notes, objects_that
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import listing, mapping, name_of, rest, seconds_of, split_thinking, text_of
from exlchat.chat.model import ConversationTree, Role

_NO_PROMPT = "<|BEGIN-VISIBLE-CHAT|>"
_KNOWN = ("timestamp", "versions", "current_version_index", "model_name")
_KNOWN_VERSION = ("content", "visible_content", "timestamp", "model_name")


def _items(parsed: Parsed) -> Sequence[Any]:
    return objects_that(parsed, lambda value: _pairs(mapping(value)) is not None)


def _pairs(fields: Mapping[str, Any]) -> list[Any] | None:
    """`internal`, what the model was given; `visible`, which is made for the browser, only without it."""
    for name in ("internal", "data"):
        # Many files have a list under `data`; only this program's have the other list beside it.
        if isinstance(fields.get(name), list) and (name == "internal" or "data_visible" in fields):
            return listing(fields[name])
    for name in ("visible", "data_visible"):
        if isinstance(fields.get(name), list):
            return [[_unescaped(side) for side in listing(pair)] for pair in fields[name]]
    return None


def _unescaped(side: object) -> object:
    return html.unescape(side) if isinstance(side, str) else side


def _convert(item: Any, notes: Notes) -> ConversationTree:
    fields = mapping(item)
    about = mapping(fields.get("metadata"))
    chain = Chain(notes.began)
    wrong = 0
    for number, pair in enumerate(_pairs(fields) or []):
        sides = [text_of(side) for side in listing(pair)]
        if len(sides) != 2:
            wrong += 1
            continue
        prompt, answer = sides
        if prompt and prompt != _NO_PROMPT:
            _add(chain, "user", prompt, mapping(about.get(f"user_{number}")))
        if answer:
            _add(chain, "assistant", answer, mapping(about.get(f"assistant_{number}")))
    if wrong:
        notes.leave_out(wrong, f"{wrong} entries that are no pairs of a prompt and an answer were left out")
    known = ("internal", "visible", "data", "data_visible", "metadata")
    return notes.of_chain("textgen", chain, fields=rest(fields, *known))


def _add(chain: Chain, role: Role, text: str, about: Mapping[str, Any]) -> None:
    """A message with its versions; the present text stands in the place of the version that is current."""
    versions = [mapping(version) for version in listing(about.get("versions"))]
    current = about.get("current_version_index")
    if type(current) is not int or not 0 <= current < len(versions):
        current = next((n for n, one in enumerate(versions) if one.get("content") == text), len(versions))
    model = name_of(about.get("model_name"))
    drafts = [
        _draft(role, text_of(one.get("content")) or "", model, one, rest(one, *_KNOWN_VERSION)) for one in versions
    ]
    replaced = rest(versions[current], *_KNOWN_VERSION) if current < len(versions) else {}
    drafts[current : current + 1] = [_draft(role, text, model, about, rest(about, *_KNOWN) | replaced)]
    chain.add_alternatives(drafts, current)


def _draft(role: Role, text: str, model: str | None, about: Mapping[str, Any], fields: Mapping[str, Any]) -> Draft:
    thinking, text = split_thinking(text) if role == "assistant" else (None, text)
    foreign = no_empty(model=name_of(about.get("model_name")) or model, textgen=fields)
    return Draft(role, text, seconds_of(about.get("timestamp")), thinking, foreign)


TEXTGEN = Importer("textgen", "text-generation-webui history", _items, _convert, lambda _: None)
