"""A preset file: TOML, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exlchat.chat.constraints import WORDS, choice_of, constraint_of, constraint_word
from exlchat.chat.presets.control_values import to_plain
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.toml_values import (
    BIASES,
    NUMBER,
    SWITCH,
    TABLE,
    TEXT,
    TEXTS,
    TOKENS,
    WHOLE,
    TomlValueError,
    checked,
    parsed,
    written,
)
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS
from exlchat.untrusted.files import UntrustedFileError, read_text

LARGEST_FILE = 1_000_000
"""Bytes. A preset has a few hundred; one with a list of banned words or a grammar some thousands."""

_KIND_OF = {"number": NUMBER, "whole": WHOLE, "texts": TEXTS, "tokens": TOKENS, "biases": BIASES, "order": TEXTS}
SAMPLING_KINDS = {
    **{name: _KIND_OF[control.kind] for name, control in CONTROLS.items()},
    "stop": TEXTS,
    "ban": TEXTS,
    "min_tokens": WHOLE,
    "begin": TEXT,
    "schema": TEXT,
    "regex": TEXT,
    "choice": TEXTS,
    "grammar": TEXT,
    "thinking_budget": WHOLE,
    "negative": TEXT,
    "stop_repeating": SWITCH,
    "max_tokens": WHOLE,
    "others_off": SWITCH,
}
"""Key -> what its value must be; those of `SamplingOverrides`, but a constraint by its kind."""

_KINDS = {"description": TEXT, **SAMPLING_KINDS, "foreign": TABLE}


def read_preset(path: Path) -> SamplingPreset:
    """The preset in `path`.

    Raises:
        SamplingPresetError: the file cannot be read, is not TOML, or has an unknown key or an impossible value.
    """
    try:
        text = read_text(path, largest=LARGEST_FILE, kind="preset")
    except UntrustedFileError as error:
        raise SamplingPresetError(str(error)) from None
    return parse_preset(text, str(path), folder=path.parent)


def parse_preset(text: str, where: str, *, folder: Path | None = None) -> SamplingPreset:
    """The preset that `text` writes; `where` names it in errors. Files that it names lie in `folder`.

    Raises:
        SamplingPresetError: not TOML, an unknown key or an impossible value.
    """
    try:
        values = checked(parsed(text), _KINDS)
        overrides = overrides_of_table({key: values[key] for key in SAMPLING_KINDS if key in values}, folder=folder)
    except (TomlValueError, ValueError) as error:
        raise SamplingPresetError(f"{where}: {error}") from None
    return SamplingPreset(values.get("description", ""), overrides, values.get("foreign", {}))


def overrides_of_table(table: Mapping[str, Any], prefix: str = "", *, folder: Path | None = None) -> SamplingOverrides:
    """The overrides that a table of `SAMPLING_KINDS` writes; `prefix` stands before a key in errors.

    Args:
        folder: where a schema or a grammar may lie in a file of its own; `None` where a text is the thing itself, as
            in what was kept or came from elsewhere.

    Raises:
        TomlValueError: an unknown key, or a value of another kind.
        ValueError: an impossible value.
    """
    values = checked(table, SAMPLING_KINDS, prefix)
    named = [word for word in WORDS if word in values]
    if len(named) > 1:
        raise TomlValueError(f"{prefix}{named[0]} and {named[1]} are both there; an answer can be held to one of them")
    if named:
        values["constraint"] = _constraint(named[0], values.pop(named[0]), folder)
    return SamplingOverrides(**values)


def _constraint(word: str, value: Any, folder: Path | None) -> Constraint:
    if word == "choice":
        return choice_of(value)
    return constraint_of(word, value, folder=folder) if folder is not None else Constraint(WORDS[word], value)


def table_of_overrides(overrides: SamplingOverrides) -> dict[str, Any]:
    """The inverse of `overrides_of_table`, as plain values; what is not wished for is left out."""
    table = {name: to_plain(name, value) if name in CONTROLS else value for name, value in overrides.given().items()}
    table = {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    if overrides.constraint is not None:
        table.pop("constraint")
        held = overrides.constraint
        table[constraint_word(held)] = list(held.choices) if held.kind == "choice" else held.text
    return {**table, "others_off": True} if overrides.others_off else table


def table_of_preset(preset: SamplingPreset) -> dict[str, Any]:
    parts = {"description": preset.description, **table_of_overrides(preset.overrides), "foreign": dict(preset.foreign)}
    return {key: value for key, value in parts.items() if key in SAMPLING_KINDS or value}


def write_text(preset: SamplingPreset) -> str:
    """The preset as the text of a file; reading it again gives the same preset."""
    return written(table_of_preset(preset))
