"""A preset file: TOML, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exlchat.chat.sampling.control_values import to_plain
from exlchat.chat.sampling.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.sampling.wishes import SamplingWishes
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
    read_text,
    written,
)
from exlchat.engine.sampling_controls import CONTROLS

LARGEST_FILE = 1_000_000
"""Bytes. A preset has a few hundred; one with a list of banned words or a grammar some thousands."""

_KIND_OF = {"number": NUMBER, "whole": WHOLE, "texts": TEXTS, "tokens": TOKENS, "biases": BIASES, "order": TEXTS}
SAMPLING_KINDS = {
    **{name: _KIND_OF[control.kind] for name, control in CONTROLS.items()},
    "max_tokens": WHOLE,
    "others_off": SWITCH,
}
"""Key of `SamplingWishes` -> what its value must be."""

_KINDS = {"description": TEXT, **SAMPLING_KINDS, "foreign": TABLE}


def read_preset(path: Path) -> SamplingPreset:
    """The preset in `path`.

    Raises:
        SamplingPresetError: the file cannot be read, is not TOML, or has an unknown key or an impossible value.
    """
    try:
        text = read_text(path, largest=LARGEST_FILE, kind="preset")
    except TomlValueError as error:
        raise SamplingPresetError(f"{path}: {error}") from None
    return parse_preset(text, str(path))


def parse_preset(text: str, where: str) -> SamplingPreset:
    """The preset that `text` writes; `where` names it in errors.

    Raises:
        SamplingPresetError: not TOML, an unknown key or an impossible value.
    """
    try:
        values = checked(parsed(text), _KINDS)
        wishes = wishes_of_table({key: values[key] for key in SAMPLING_KINDS if key in values})
    except (TomlValueError, ValueError) as error:
        raise SamplingPresetError(f"{where}: {error}") from None
    return SamplingPreset(values.get("description", ""), wishes, values.get("foreign", {}))


def wishes_of_table(table: Mapping[str, Any], prefix: str = "") -> SamplingWishes:
    """The wishes that a table of `SAMPLING_KINDS` writes; `prefix` stands before a key in errors.

    Raises:
        TomlValueError: an unknown key, or a value of another kind.
        ValueError: an impossible value.
    """
    return SamplingWishes(**checked(table, SAMPLING_KINDS, prefix))


def table_of_wishes(wishes: SamplingWishes) -> dict[str, Any]:
    """The inverse of `wishes_of_table`, as plain values; what is not wished for is left out."""
    table = {name: to_plain(name, value) if name in CONTROLS else value for name, value in wishes.given().items()}
    return {**table, "others_off": True} if wishes.others_off else table


def table_of_preset(preset: SamplingPreset) -> dict[str, Any]:
    """What a preset file says, as plain values; what is not there is left out."""
    parts = {"description": preset.description, **table_of_wishes(preset.wishes), "foreign": dict(preset.foreign)}
    return {key: value for key, value in parts.items() if key in SAMPLING_KINDS or value}


def write_text(preset: SamplingPreset) -> str:
    """The preset as the text of a file; reading it again gives the same preset."""
    return written(table_of_preset(preset))
