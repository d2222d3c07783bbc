"""Two cards in one PNG file: the newest, of which the persona is made, and an older one for older programs.

Both are kept, and what is changed in the persona is changed in both. Where they differed before they still do: the
notes of the older one may tell its readers what they miss.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from exlchat.chat.personas.card import KEPT, backfill, card_of_persona, kept_text, persona_of_card
from exlchat.chat.personas.card_values import read_json
from exlchat.chat.personas.decorators import split_decorators
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.persona import Character, Persona, PersonaError
from exlchat.chat.personas.toml_file import LARGEST_FILE
from exlchat.untrusted.text import one_line

BESIDE = "older_card_json"
"""Where in `Persona.foreign` the older card lies, as JSON text."""

MOST_KEPT = 48_000_000
"""Characters of both cards together; a persona file holds them beside all texts."""

_Part = TypeVar("_Part", Persona, Character, Lorebook, LoreEntry)


def with_older(persona: Persona, older: Any) -> Persona | None:
    """The persona with the older card kept too, unless that is what an export writes anyway; `None`: too large."""
    text = kept_text(older)
    if text == kept_text(backfill(card_of_persona(persona))):
        return persona
    if len(text) + len(persona.foreign[KEPT]) > MOST_KEPT:
        return None
    return replace(persona, foreign={**persona.foreign, BESIDE: text})


def older_card(persona: Persona) -> dict[str, Any] | None:
    """The older card, with what has changed in the persona since; `None` where none is kept.

    Raises:
        PersonaError: one of the cards that are kept cannot be read any more.
    """
    text = persona.foreign.get(BESIDE)
    if not isinstance(text, str):
        return None
    theirs = _persona(persona, BESIDE)
    changed = _carried(_persona(persona, KEPT), replace(persona, foreign={}), theirs)
    return card_of_persona(replace(changed, foreign={KEPT: text}))


def _persona(persona: Persona, key: str) -> Persona:
    where = f"{one_line(persona.name, 80)}: foreign.{key}"
    try:
        card = read_json(str(persona.foreign.get(key, "")).encode(), where, largest=LARGEST_FILE)
        return replace(persona_of_card(card, where), foreign={})
    except PersonaError as error:
        raise PersonaError(f"{error}; mend it, or take both cards out of the file") from None


def _carried(before: _Part, after: _Part, theirs: _Part) -> _Part:
    """`theirs` with each field that differs between `before` and `after` as it is after."""
    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(before)):
        parts = old, new, other = getattr(before, name), getattr(after, name), getattr(theirs, name)
        if old == new:
            continue
        if name == "entries" and len(old) == len(other) and old != other:
            changes[name] = _carried_entries(old, new, other)
        elif name in ("character", "lorebook") and None not in parts:
            changes[name] = _carried(old, new, other)
        else:
            changes[name] = new
    return replace(theirs, **changes)


def _carried_entries(
    before: Sequence[LoreEntry], after: Sequence[LoreEntry], theirs: Sequence[LoreEntry]
) -> tuple[LoreEntry, ...]:
    """The same of entries, by where they stand. What comes new into the older card comes without decorators."""
    carried: list[LoreEntry] = []
    for step, start, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if step == "equal":
            carried += theirs[start:end]
            continue
        both = min(end - start, last - first)
        for place in range(both):
            own = theirs[start + place]
            entry = _carried(before[start + place], after[first + place], own)
            carried.append(entry if entry.content == own.content else _undecorated(entry))
        carried += map(_undecorated, after[first + both : last])
    return tuple(carried)


def _undecorated(entry: LoreEntry) -> LoreEntry:
    return replace(entry, content=split_decorators(entry.content)[1]) if "@@" in entry.content else entry
