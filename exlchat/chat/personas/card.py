"""Character cards V1, V2 and V3 as JSON values -> personas and back.

A card is kept whole in the persona (`foreign.card_json`). Back to a card, only those fields are written in which the
persona has changed since, so that whatever another program keeps in a card survives the way through this one.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from exlchat.chat.personas.card_lorebook import lorebook_of, put_lorebook, without_decorators
from exlchat.chat.personas.card_values import read_json, text_list, text_value
from exlchat.chat.personas.persona import Character, Example, Persona, PersonaError
from exlchat.chat.personas.toml_file import LARGEST_FILE, persona_of_table, table_of_persona
from exlchat.untrusted.text import one_line

CardVersion = Literal[1, 2, 3]

KEPT = "card_json"
"""Where in `Persona.foreign` the card lies, as JSON text: TOML has no null."""

OURS = "exlchat"
"""Where in a card's `extensions` lies what cards have no field for."""

_V1 = ("name", "description", "personality", "scenario", "first_mes", "mes_example")
_OLD_NAMES = {
    "name": "char_name",
    "description": "char_persona",
    "scenario": "world_scenario",
    "first_mes": "char_greeting",
    "mes_example": "example_dialogue",
}
_CHARACTER = {
    "nickname": "nickname",
    "description": "description",
    "personality": "personality",
    "scenario": "scenario",
    "post_history_instructions": "post_history",
}
_NEW_IN_V2: dict[str, Any] = {
    "creator_notes": "",
    "system_prompt": "",
    "post_history_instructions": "",
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}
_OPTIONAL = ("character_book", "nickname", "assets")
_IN_OURS = ("examples_as", "template", "sampling", "thinking", "model", "variables")
_OURS = (*_IN_OURS, "character", "examples")
_LONGEST_NOTE = 120
_V3_WARNING = "This is a Character Card V3, written as V2 for older programs; some of it works only in newer ones."


def version_of(card: Any) -> CardVersion | None:
    """Which card `card` is; `None` for something else."""
    if not isinstance(card, dict):
        return None
    if isinstance(card.get("data"), dict) and (card.get("spec") is not None or _has_fields(card["data"])):
        return 3 if card.get("spec") == "chara_card_v3" else 2
    return 1 if _has_fields(card) and "context" not in card else None


def newer_than_known(card: Any) -> bool:
    """Whether a card says that it follows a specification after 3.0."""
    try:
        return version_of(card) == 3 and float(card.get("spec_version", 3.0)) > 3.0
    except (TypeError, ValueError):
        return False


def persona_of_card(card: Any, where: str) -> Persona:
    """The persona that a card describes; values of the wrong kind are as if they were not there.

    Raises:
        PersonaError: not a card.
    """
    version = version_of(card)
    if version is None:
        raise PersonaError(f"{where}: not a character card: it has neither a name nor a first message")
    return replace(_persona_of_data(card if version == 1 else card["data"]), foreign={KEPT: kept_text(card)})


def kept_text(card: Any) -> str:
    """A card as the JSON text that is kept of it, in characters that TOML writes as they are."""
    return json.dumps(card, ensure_ascii=True, separators=(",", ":")).replace("'", "\\u0027")


def card_of_persona(persona: Persona, version: CardVersion | None = None) -> dict[str, Any]:
    """The card of a persona: the one that it came from, with what has changed since.

    Args:
        persona: any.
        version: of the card; `None` keeps that of the one it came from, and is 3 for one that came from none.

    Raises:
        PersonaError: the card that is kept with it cannot be read any more.
    """
    kept = persona.foreign.get(KEPT)
    card: dict[str, Any] = {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": ""}}
    if isinstance(kept, str):
        # Escaped, a card takes more bytes than the file that it came from.
        where = f"{one_line(persona.name, 80)}: foreign.{KEPT}"
        try:
            card = read_json(kept.encode(), where, largest=LARGEST_FILE)
        except PersonaError as error:
            raise PersonaError(f"{error}; mend it, or take it out of the file") from None
    before = version_of(card)
    if before is None:
        raise PersonaError(f"{persona.name}: foreign.{KEPT} is not a character card; take it out of the file")
    if before == 1 and (version not in (None, 1) or _needs_v2(persona, card)):
        card = _as_v2(card)
        before = 2
    if before != 1:
        _put_copies(card, persona)
    _put(card if before == 1 else card["data"], persona)
    if not isinstance(kept, str):
        _fill_in(card["data"])
    if version == 3 and before != 3:
        return _as_v3(card)
    return backfill(card) if version == 2 and before == 3 else card


def backfill(card: Mapping[str, Any]) -> dict[str, Any]:
    """A V3 card as V2, for programs that know no V3: without decorators, and with a line that says so."""
    older = copy.deepcopy(dict(card))
    older |= {"spec": "chara_card_v2", "spec_version": "2.0"}
    data = older["data"]
    _fill_in(data, group_only=False)
    if isinstance(data["creator_notes"], str) and _V3_WARNING not in data["creator_notes"]:
        data["creator_notes"] = f"{data['creator_notes']}\n\n{_V3_WARNING}".strip()
    without_decorators(data.get("character_book"))
    return older


def _has_fields(data: Mapping[str, Any]) -> bool:
    return any(isinstance(data.get(key), str) for key in ("name", "char_name")) and any(
        isinstance(data.get(key), str) for key in (*_V1[1:], *_OLD_NAMES.values()) if key != "char_name"
    )


def _key(data: Mapping[str, Any], key: str) -> str:
    """The name under which `data` has a field: the usual one, or that of the oldest cards."""
    old = _OLD_NAMES.get(key)
    return old if old is not None and key not in data and old in data else key


def _text(data: Mapping[str, Any], key: str) -> str:
    return text_value(data.get(_key(data, key)))


def _persona_of_data(data: Mapping[str, Any]) -> Persona:
    ours = data.get("extensions")
    ours = ours.get(OURS) if isinstance(ours, dict) else None
    ours = ours if isinstance(ours, dict) else {}
    name = one_line(_text(data, "name"), 80) or "Unnamed"
    examples = examples_of(_text(data, "mes_example"), name)
    persona = Persona(
        name,
        description=one_line(_text(data, "creator_notes"), _LONGEST_NOTE),
        system=_text(data, "system_prompt"),
        greeting=_text(data, "first_mes"),
        alternate_greetings=text_list(data.get("alternate_greetings")),
        examples=examples,
        examples_as="system",
        character=Character(**{field: _text(data, key) for key, field in _CHARACTER.items()}),
        lorebook=lorebook_of(data.get("character_book")),
    )
    return _with_ours(persona, ours)


def _with_ours(persona: Persona, ours: Mapping[str, Any]) -> Persona:
    """With what another exlchat has put into `extensions`; damaged, it is as if it were not there."""
    table = {"name": persona.name, **{key: ours[key] for key in (*_IN_OURS, "examples") if key in ours}}
    try:
        given = persona_of_table(table, "extensions")
    except PersonaError:
        return persona
    changes = {key: getattr(given, key) for key in (*_IN_OURS, "examples") if key in ours}
    if ours.get("character") is False and persona.character == Character():
        changes["character"] = None
    return replace(persona, **changes)


def _needs_v2(persona: Persona, card: dict[str, Any]) -> bool:
    written = copy.deepcopy(card)
    _put(written, persona)
    return written.keys() - card.keys() - set(_V1) - set(_OLD_NAMES.values()) != set()


def _put(data: dict[str, Any], persona: Persona) -> None:
    """Write into `data` the fields in which `persona` differs from what `data` says."""
    before = _persona_of_data(data)
    for key, field in (
        ("name", "name"),
        ("creator_notes", "description"),
        ("system_prompt", "system"),
        ("first_mes", "greeting"),
    ):
        if getattr(persona, field) != getattr(before, field):
            data[_key(data, key)] = getattr(persona, field)
    if persona.alternate_greetings != before.alternate_greetings:
        data["alternate_greetings"] = list(persona.alternate_greetings)
    if persona.examples != before.examples or _called_by_name(data, before, persona):
        data[_key(data, "mes_example")] = text_of_examples(persona.examples)
    character, known = persona.character or Character(), before.character or Character()
    for key, field in _CHARACTER.items():
        if getattr(character, field) != getattr(known, field):
            data[_key(data, key)] = getattr(character, field)
    if persona.lorebook != before.lorebook:
        put_lorebook(data, persona.lorebook)
    _put_ours(data, persona)


def _called_by_name(data: Mapping[str, Any], before: Persona, persona: Persona) -> bool:
    """Whether the examples call the speaker by a name that is no longer its own."""
    text = _text(data, "mes_example")
    return examples_of(text, before.name) == before.examples != examples_of(text, persona.name)


def _put_copies(card: dict[str, Any], persona: Persona) -> None:
    """SillyTavern writes the fields of V1 beside `data` as well, for older programs: what was the same stays so."""
    written = copy.deepcopy(card["data"])
    _put(written, persona)
    for copied, key in (*zip(_V1, _V1, strict=True), ("creatorcomment", "creator_notes")):
        if copied in card and card[copied] == card["data"].get(key) and key in written:
            card[copied] = written[key]


def _put_ours(data: dict[str, Any], persona: Persona) -> None:
    """Put what cards have no field for into `extensions`, where the persona would else come back different."""
    if _same(_persona_of_data(data), persona):
        return
    table = table_of_persona(persona)
    ours: dict[str, Any] = {key: table[key] for key in _IN_OURS if key in table}
    ours["examples_as"] = persona.examples_as
    if persona.character is None:
        ours["character"] = False
    if examples_of(_text(data, "mes_example"), persona.name) != persona.examples:
        ours["examples"] = table.get("examples", [])
    if not isinstance(data.get("extensions"), dict):
        data["extensions"] = {}
    before = data["extensions"].get(OURS)
    # What a newer exlchat has put there stays.
    others = {key: value for key, value in before.items() if key not in _OURS} if isinstance(before, dict) else {}
    data["extensions"][OURS] = {**others, **ours}


def _same(one: Persona, other: Persona) -> bool:
    return replace(one, foreign={}) == replace(other, foreign={})


def _fill_in(data: dict[str, Any], *, group_only: bool = True) -> None:
    """The fields that the specification wants, empty."""
    for key, usual in {**dict.fromkeys(_V1, ""), **_NEW_IN_V2}.items():
        data.setdefault(key, copy.copy(usual))
    if group_only:
        data.setdefault("group_only_greetings", [])


def _as_v2(card: Mapping[str, Any]) -> dict[str, Any]:
    """A V1 card as V2; what V1 does not name stays where it was, and is in `data` too if V2 or V3 name it."""
    data = {key: card.get(_key(card, key), "") for key in _V1}
    taken = {_key(card, key) for key in _V1}
    data |= {key: copy.deepcopy(card[key]) for key in (*_NEW_IN_V2, *_OPTIONAL) if key in card}
    _fill_in(data, group_only=False)
    others = {key: value for key, value in card.items() if key not in taken}
    return {**others, "spec": "chara_card_v2", "spec_version": "2.0", "data": data}


def _as_v3(card: Mapping[str, Any]) -> dict[str, Any]:
    newer = copy.deepcopy(dict(card))
    newer |= {"spec": "chara_card_v3", "spec_version": "3.0"}
    _fill_in(newer["data"])
    book = newer["data"].get("character_book")
    for entry in book.get("entries", []) if isinstance(book, dict) and isinstance(book.get("entries"), list) else []:
        if isinstance(entry, dict):
            entry.setdefault("use_regex", False)
    return newer


__all__ = [
    "KEPT",
    "OURS",
    "CardVersion",
    "backfill",
    "card_of_persona",
    "kept_text",
    "newer_than_known",
    "persona_of_card",
    "version_of",
]


_START = re.compile(r"<START>", re.IGNORECASE)
_USER = ("{{user}}", "<user>", "you")
_CHAR = ("{{char}}", "<bot>", "<char>")


def examples_of(text: str, name: str) -> tuple[Example, ...]:
    """The exchanges in `text`; a line that begins with neither speaker goes on with the one before."""
    found: list[Example] = []
    for block in _START.split(text):
        found += _exchanges(_turns(block, name.casefold()))
    return tuple(found)


def text_of_examples(examples: Sequence[Example]) -> str:
    """The text from which `examples_of` makes the same, as long as no line in it looks like a speaker's."""
    blocks = []
    for example in examples:
        turns = (("{{user}}", example.user), ("{{char}}", example.assistant))
        blocks.append("\n".join(["<START>", *(f"{who}: {said}" for who, said in turns if said)]))
    return "\n".join(blocks)


def _turns(block: str, name: str) -> list[tuple[str, str]]:
    """(role, text) of one dialogue; what stands before the first speaker is the character's."""
    turns: list[tuple[str, list[str]]] = []
    for line in block.strip().split("\n"):
        speaker, colon, rest = line.partition(":")
        who = speaker.strip().casefold()
        if colon and who in _USER:
            turns.append(("user", [rest.strip()]))
        elif colon and who in (*_CHAR, name):
            turns.append(("assistant", [rest.strip()]))
        elif turns:
            turns[-1][1].append(line)
        else:
            turns.append(("assistant", [line]))
    return [(role, "\n".join(lines).strip()) for role, lines in turns]


def _exchanges(turns: Sequence[tuple[str, str]]) -> list[Example]:
    found: list[Example] = []
    asked = ""
    for role, text in turns:
        if not text:
            continue
        if role == "user":
            asked = f"{asked}\n\n{text}" if asked else text
        else:
            found.append(Example(asked, text))
            asked = ""
    return [*found, Example(asked, "")] if asked else found
