"""A persona file: TOML, checked key by key. Reading needs nothing but Python; writing keeps texts readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from exlchat.chat.personas.lorebook import SELECTIVE_LOGICS, Lorebook, LoreEntry, Position
from exlchat.chat.personas.macros import BUILT_IN_NAMES
from exlchat.chat.personas.persona import EXAMPLES_AS, Character, Example, Persona, PersonaError
from exlchat.chat.presets.toml_file import overrides_of_table, table_of_overrides
from exlchat.chat.toml_values import (
    NUMBER,
    SWITCH,
    TABLE,
    TABLES,
    TEXT,
    TEXTS,
    WHOLE,
    TomlValueError,
    checked,
    parsed,
    written,
)
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

LARGEST_FILE = 72_000_000
"""Bytes. Any card that is read fits, written out and kept whole, in whatever script it is."""

_PERSONA = {
    "name": TEXT,
    "description": TEXT,
    "system": TEXT,
    "greeting": TEXT,
    "alternate_greetings": TEXTS,
    "examples": TABLES,
    "examples_as": TEXT,
    "template": TEXT,
    "sampling": TABLE,
    "thinking": SWITCH,
    "model": TEXT,
    "variables": TABLE,
    "character": TABLE,
    "lorebook": TABLE,
    "foreign": TABLE,
}
_EXAMPLE = {"user": TEXT, "assistant": TEXT}
_CHARACTER = {one.name: TEXT for one in fields(Character)}
_LOREBOOK = {
    "name": TEXT,
    "description": TEXT,
    "scan_depth": WHOLE,
    "token_budget": WHOLE,
    "recursive_scanning": SWITCH,
    "entries": TABLES,
}
_ENTRY = {
    "content": TEXT,
    "keys": TEXTS,
    "secondary_keys": TEXTS,
    "name": TEXT,
    "enabled": SWITCH,
    "selective": SWITCH,
    "selective_logic": TEXT,
    "constant": SWITCH,
    "insertion_order": NUMBER,
    "priority": NUMBER,
    "case_sensitive": SWITCH,
    "match_whole_words": SWITCH,
    "use_regex": SWITCH,
    "position": TEXT,
    "hidden_keys": TEXTS,
    "scan_depth": WHOLE,
    "probability": NUMBER,
    "delay": WHOLE,
    "group": TEXT,
    "group_override": SWITCH,
    "group_weight": NUMBER,
    "exclude_recursion": SWITCH,
    "prevent_recursion": SWITCH,
    "delay_until_recursion": WHOLE,
    "ignore_budget": SWITCH,
}
_CHOICES: dict[str, tuple[str, ...]] = {"position": get_args(Position), "selective_logic": SELECTIVE_LOGICS}
_NOT_NEGATIVE = ("scan_depth", "probability", "delay", "group_weight", "delay_until_recursion")


def read_persona(path: Path) -> Persona:
    """The persona in `path`; a file without a `name` goes by its own.

    Raises:
        PersonaError: the file cannot be read, is not TOML, or has an unknown key or an impossible value.
    """
    try:
        text = read_text(path, largest=LARGEST_FILE, kind="persona")
    except UntrustedFileError as error:
        raise PersonaError(str(error)) from None
    return parse_persona(text, str(path), usual_name=path.stem, folder=path.parent)


def parse_persona(text: str, where: str, *, usual_name: str = "", folder: Path | None = None) -> Persona:
    """The persona that `text` writes; `where` names it in errors. Files that it names lie in `folder`.

    Raises:
        PersonaError: too large, not TOML, an unknown key or an impossible value.
    """
    if len(text.encode("utf-8", "surrogatepass")) > LARGEST_FILE:
        raise PersonaError(f"{where}: larger than {LARGEST_FILE // 10**6} MB, which no persona is")
    try:
        table = parsed(text)
    except TomlValueError as error:
        raise PersonaError(f"{where}: {error}") from None
    return persona_of_table({"name": usual_name, **table}, where, folder=folder)


def persona_of_table(table: Mapping[str, Any], where: str, *, folder: Path | None = None) -> Persona:
    """The persona that a table of plain values describes, with the keys of a persona file.

    Raises:
        PersonaError: an unknown key or an impossible value.
    """
    values = _checked(table, _PERSONA, where, "")
    if not values.get("name", "").strip():
        raise PersonaError(f'{where}: name is missing; add name = "..."')
    if values.get("examples_as", "messages") not in EXAMPLES_AS:
        raise PersonaError(f"{where}: examples_as is {values['examples_as']!r}; it must be one of messages, system")
    if "examples" in values:
        values["examples"] = tuple(
            Example(**{"user": "", "assistant": "", **_checked(one, _EXAMPLE, where, f"examples {number}: ")})
            for number, one in enumerate(values["examples"], 1)
        )
    if "sampling" in values:
        try:
            values["sampling"] = overrides_of_table(values["sampling"], "sampling.", folder=folder)
        except TomlValueError as error:
            raise PersonaError(f"{where}: {error}") from None
        except ValueError as error:
            raise PersonaError(f"{where}: sampling: {error}") from None
    if "variables" in values:
        _check_variables(values["variables"], where)
    if "character" in values:
        values["character"] = Character(**_checked(values["character"], _CHARACTER, where, "character."))
    if "lorebook" in values:
        values["lorebook"] = _lorebook(values["lorebook"], where)
    return Persona(**values)


def _lorebook(table: Mapping[str, Any], where: str) -> Lorebook:
    values = _checked(table, _LOREBOOK, where, "lorebook.")
    entries = []
    for number, one in enumerate(values.pop("entries", ()), 1):
        entry = _checked(one, _ENTRY, where, f"lorebook.entries {number}: ")
        if "content" not in entry:
            raise PersonaError(f"{where}: lorebook.entries {number}: content is missing")
        for key, choices in _CHOICES.items():
            if key in entry and entry[key] not in choices:
                raise PersonaError(f"{where}: lorebook.entries {number}: {key} must be one of {', '.join(choices)}")
        for key in _NOT_NEGATIVE:
            if entry.get(key, 0) < 0:
                raise PersonaError(f"{where}: lorebook.entries {number}: {key} is {entry[key]}; it must be 0 or more")
        entries.append(LoreEntry(**entry))
    for key in ("scan_depth", "token_budget"):
        if values.get(key, 0) < 0:
            raise PersonaError(f"{where}: lorebook.{key} is {values[key]}; it must be 0 or more")
    return Lorebook(tuple(entries), **values)


def _check_variables(table: Mapping[str, Any], where: str) -> None:
    for name, value in table.items():
        if name in BUILT_IN_NAMES:
            raise PersonaError(f"{where}: variables.{name}: this name has a meaning of its own; choose another")
        if not (name.isidentifier() and name == name.lower()):
            raise PersonaError(f"{where}: variables: {one_line(name, 60)!r} must be lower-case letters, digits and _")
        if not isinstance(value, str):
            raise PersonaError(f"{where}: variables.{name} is {one_line(repr(value), 60)}; it must be {TEXT}")


def _checked(table: Mapping[str, Any], kinds: Mapping[str, str], where: str, prefix: str) -> dict[str, Any]:
    try:
        return checked(table, kinds, prefix)
    except TomlValueError as error:
        raise PersonaError(f"{where}: {error}") from None


def table_of_persona(persona: Persona) -> dict[str, Any]:
    """What a persona file says, as plain values; what has its usual value is left out."""
    usual = Persona(persona.name)
    table: dict[str, Any] = {"name": persona.name}
    for key in ("description", "system", "greeting", "examples_as", "template", "thinking", "model"):
        if getattr(persona, key) != getattr(usual, key):
            table[key] = getattr(persona, key)
    if persona.alternate_greetings:
        table["alternate_greetings"] = list(persona.alternate_greetings)
    parts: dict[str, Any] = {
        "sampling": table_of_overrides(persona.sampling),
        "variables": dict(persona.variables),
        "examples": [{"user": one.user, "assistant": one.assistant} for one in persona.examples],
        "foreign": dict(persona.foreign),
    }
    table |= {key: value for key, value in parts.items() if value}
    # Empty, they still mean something.
    if persona.character is not None:
        table["character"] = _unusual(persona.character, Character())
    if persona.lorebook is not None:
        table["lorebook"] = _lorebook_table(persona.lorebook)
    return table


def _lorebook_table(lorebook: Lorebook) -> dict[str, Any]:
    table = _unusual(lorebook, Lorebook())
    if lorebook.entries:
        table["entries"] = [
            {"content": one.content, **_unusual(one, LoreEntry(one.content))} for one in lorebook.entries
        ]
    return table


def _unusual(value: Character | Lorebook | LoreEntry, usual: object) -> dict[str, Any]:
    """The fields in which `value` differs from `usual`, tuples as lists."""
    named = {one.name: getattr(value, one.name) for one in fields(value)}
    return {
        name: list(one) if isinstance(one, tuple) else one for name, one in named.items() if one != getattr(usual, name)
    }


def write_text(persona: Persona) -> str:
    """The persona as the text of a file; reading it again gives the same persona."""
    return written(table_of_persona(persona))
