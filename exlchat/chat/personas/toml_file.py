"""A persona file: TOML, checked key by key. Reading needs nothing but Python; writing keeps texts readable."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.macros import BUILT_IN_NAMES
from exlchat.chat.personas.persona import EXAMPLES_AS, Character, Example, Persona, PersonaError, PersonaSampling
from exlchat.chat.plain_text import one_line

LARGEST_FILE = 32_000_000
"""Bytes. Cards with pictures inside their JSON take a few megabytes."""

_TEXT = "a text in quotes"
_TEXTS = "a list of texts in quotes"
_NUMBER = "a number"
_WHOLE = "a whole number"
_SWITCH = "true or false"
_TABLE = "a table"
_TABLES = "a list of tables"

_PERSONA = {
    "name": _TEXT,
    "description": _TEXT,
    "system": _TEXT,
    "greeting": _TEXT,
    "alternate_greetings": _TEXTS,
    "examples": _TABLES,
    "examples_as": _TEXT,
    "template": _TEXT,
    "sampling": _TABLE,
    "thinking": _SWITCH,
    "model": _TEXT,
    "variables": _TABLE,
    "character": _TABLE,
    "lorebook": _TABLE,
    "foreign": _TABLE,
}
_EXAMPLE = {"user": _TEXT, "assistant": _TEXT}
_SAMPLING = {"temperature": _NUMBER, "top_k": _WHOLE, "top_p": _NUMBER, "min_p": _NUMBER, "max_tokens": _WHOLE}
_CHARACTER = {one.name: _TEXT for one in fields(Character)}
_LOREBOOK = {
    "name": _TEXT,
    "description": _TEXT,
    "scan_depth": _WHOLE,
    "token_budget": _WHOLE,
    "recursive_scanning": _SWITCH,
    "entries": _TABLES,
}
_ENTRY = {
    "content": _TEXT,
    "keys": _TEXTS,
    "secondary_keys": _TEXTS,
    "name": _TEXT,
    "enabled": _SWITCH,
    "selective": _SWITCH,
    "constant": _SWITCH,
    "insertion_order": _NUMBER,
    "priority": _NUMBER,
    "case_sensitive": _SWITCH,
    "use_regex": _SWITCH,
    "position": _TEXT,
    "hidden_keys": _TEXTS,
}
_POSITIONS = ("before_char", "after_char")


def read_persona(path: Path) -> Persona:
    """The persona in `path`; a file without a `name` goes by its own.

    Raises:
        PersonaError: the file cannot be read, is not TOML, or has an unknown key or an impossible value.
    """
    return parse_persona(_read(path), str(path), usual_name=path.stem)


def parse_persona(text: str, where: str, *, usual_name: str = "") -> Persona:
    """The persona that `text` writes; `where` names it in errors.

    Raises:
        PersonaError: not TOML, an unknown key or an impossible value.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PersonaError(f"{where}: not TOML: {one_line(str(error))}; mend that line") from None
    except (RecursionError, ValueError):
        raise PersonaError(f"{where}: not TOML that can be read: nested too deep or a number too long") from None
    return persona_of_table({"name": usual_name, **table}, where)


def persona_of_table(table: Mapping[str, Any], where: str) -> Persona:
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
            values["sampling"] = PersonaSampling(**_checked(values["sampling"], _SAMPLING, where, "sampling."))
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
        if entry.get("position", "after_char") not in _POSITIONS:
            wanted = ", ".join(_POSITIONS)
            raise PersonaError(f"{where}: lorebook.entries {number}: position must be one of {wanted}")
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
            raise PersonaError(f"{where}: variables.{name} is {one_line(repr(value), 60)}; it must be {_TEXT}")


def _checked(table: Mapping[str, Any], kinds: Mapping[str, str], where: str, prefix: str) -> dict[str, Any]:
    """A copy of `table`, lists as tuples, or a line that names the first key that is wrong."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            nearest = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(kinds)}"
            raise PersonaError(f"{where}: {prefix}unknown key {one_line(key, 60)!r}; {hint}")
        if not _fits(value, kinds[key]):
            raise PersonaError(f"{where}: {prefix}{key} is {one_line(repr(value), 60)}; it must be {kinds[key]}")
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "a text in quotes":
            return isinstance(value, str)
        case "true or false":
            return isinstance(value, bool)
        case "a table":
            return isinstance(value, dict)
        case "a whole number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "a number":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    wanted = str if kind == _TEXTS else dict
    return isinstance(value, list | tuple) and all(isinstance(one, wanted) for one in value)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PersonaError(f"{path}: larger than {LARGEST_FILE // 10**6} MB, which no persona is")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PersonaError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise PersonaError(f"{path}: cannot be read ({reason}); mend its permissions") from None


def table_of_persona(persona: Persona) -> dict[str, Any]:
    """What a persona file says, as plain values; what has its usual value is left out."""
    usual = Persona(persona.name)
    table: dict[str, Any] = {"name": persona.name}
    for key in ("description", "system", "greeting", "examples_as", "template", "thinking", "model"):
        if getattr(persona, key) != getattr(usual, key):
            table[key] = getattr(persona, key)
    if persona.alternate_greetings:
        table["alternate_greetings"] = list(persona.alternate_greetings)
    sampling = {key: getattr(persona.sampling, key) for key in _SAMPLING}
    parts: dict[str, Any] = {
        "sampling": {name: value for name, value in sampling.items() if value is not None},
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
    import tomlkit

    document = tomlkit.document()
    table = table_of_persona(persona)
    for key, value in sorted(table.items(), key=lambda item: _is_table(item[1])):
        document.add(key, _item(value))
    return tomlkit.dumps(document)


def _item(value: Any) -> Any:
    """A value as tomlkit writes it best: texts of several lines over several lines, tables of their own."""
    import tomlkit

    if isinstance(value, str):
        return _text_item(value)
    if isinstance(value, Mapping):
        table = tomlkit.table()
        # A plain key behind a table of the table would belong to that one.
        for key, one in sorted(value.items(), key=lambda item: _is_table(item[1])):
            table.add(key, _item(one))
        return table
    if _is_table(value):
        tables = tomlkit.aot()
        for one in value:
            tables.append(_item(one))
        return tables
    return tomlkit.item(value)


def _is_table(value: object) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _text_item(text: str) -> Any:
    import tomlkit
    from tomlkit.items import String, StringType, Trivia

    readable = all(character in "\n\t" or character.isprintable() for character in text)
    if "\n" in text and readable and "\\" not in text and '"' not in text[-1:] and '""' not in text:
        # TOML drops the newline right behind the opening quotes, so that the text begins on a line of its own.
        return String(StringType.MLB, text, f"\n{text}", Trivia())
    # A literal one is read many times faster.
    return tomlkit.string(text, literal=text.isascii() and text.isprintable() and "'" not in text and '"' in text)
