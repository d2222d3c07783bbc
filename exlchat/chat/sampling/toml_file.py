"""A preset file: TOML, checked key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exlchat.chat.sampling.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.sampling.wishes import SamplingWishes
from exlchat.chat.toml_values import NUMBER, TABLE, TEXT, WHOLE, TomlValueError, checked, parsed, read_text, written

LARGEST_FILE = 1_000_000
"""Bytes. A preset has a few hundred; one with a list of banned words or a grammar some thousands."""

SAMPLING_KINDS = {"temperature": NUMBER, "top_k": WHOLE, "top_p": NUMBER, "min_p": NUMBER, "max_tokens": WHOLE}
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
        wishes = SamplingWishes(**{key: values[key] for key in SAMPLING_KINDS if key in values})
    except (TomlValueError, ValueError) as error:
        raise SamplingPresetError(f"{where}: {error}") from None
    return SamplingPreset(values.get("description", ""), wishes, values.get("foreign", {}))


def table_of_preset(preset: SamplingPreset) -> dict[str, Any]:
    """What a preset file says, as plain values; what is not there is left out."""
    parts = {"description": preset.description, **preset.wishes.given(), "foreign": dict(preset.foreign)}
    return {key: value for key, value in parts.items() if key in SAMPLING_KINDS or value}


def write_text(preset: SamplingPreset) -> str:
    """The preset as the text of a file; reading it again gives the same preset."""
    return written(table_of_preset(preset))
