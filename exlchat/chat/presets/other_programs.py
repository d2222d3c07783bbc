"""Sampling presets of text-generation-webui (YAML), SillyTavern's for text completion and KoboldAI's (JSON), made ours.

They come from strangers: bounded, nothing run. A value that the engine draws by is taken over, one that means "off" is
dropped, and all others are kept in `[foreign]`; those that would change an answer are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlchat.chat.presets.kobold import KOBOLD, is_kobold
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.samplers import SILLYTAVERN, WEBUI, Dialect
from exlchat.chat.presets.taking_over import TakenOver, take_over
from exlchat.chat.presets.toml_file import LARGEST_FILE, parse_preset
from exlchat.chat.toml_values import shown_value
from exlchat.untrusted import files
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import one_line, storable
from exlchat.untrusted.yaml_reader import YamlError, read_yaml

_WANTED = (
    "give a preset of text-generation-webui (YAML), of KoboldAI or of SillyTavern for text completion (JSON), "
    "or a .toml file"
)
_LARGEST_WHOLE = 2**63 - 1
_SIGNS = frozenset({"temp", "rep_pen"})
"""Of which a preset of SillyTavern or KoboldAI has both, or the second, and other JSON of samplers none."""


@dataclass(frozen=True, slots=True)
class ImportedPreset:
    """What a file held.

    Args:
        preset: made of it.
        kind: what it was, for people.
        notices: a line each about what of it holds no longer.
    """

    preset: SamplingPreset
    kind: str
    notices: tuple[str, ...] = ()


def read_file(path: Path) -> ImportedPreset:
    """The preset in a file: of text-generation-webui, SillyTavern or KoboldAI, or a preset file of our own.

    Raises:
        SamplingPresetError: the file cannot be read, or holds none.
    """
    data, where = _bytes(path), one_line(path.name, 80)
    if path.suffix.lower() == ".toml":
        return ImportedPreset(parse_preset(_text(data, where), where), "preset")
    values, dialect = _values(data, where)
    return _preset_of(values, dialect, where, one_line(path.stem, 60))


def _values(data: bytes, where: str) -> tuple[dict[str, Any], Dialect]:
    """What the file says, and in whose words: the one place where strangers' YAML and JSON are read."""
    is_json = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") or data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        value = read_json(data, most=LARGEST_FILE) if is_json else read_yaml(_text(data, where), most=LARGEST_FILE)
    except (JsonError, YamlError) as error:
        raise SamplingPresetError(f"{where}: {error}") from None
    if is_json and isinstance(value, dict) and isinstance(value.get("preset"), dict):
        # SillyTavern writes presets of several kinds into one file, this one by that name.
        value = value["preset"]
    if not isinstance(value, dict):
        raise SamplingPresetError(f"{where}: not a preset: no names with values in it; {_WANTED}")
    if is_json and "openai_max_tokens" in value:
        raise SamplingPresetError(f"{where}: a chat completion preset, which is for servers; {_WANTED}")
    values = {storable(str(key)): one for key, one in value.items()}
    dialect = WEBUI if not is_json else KOBOLD if is_kobold(values) else SILLYTAVERN
    if not values.keys() & (_SIGNS if is_json else dialect.known):
        raise SamplingPresetError(f"{where}: not a preset: no sampler that is known; {_WANTED}")
    return dialect.restated(values), dialect


def _preset_of(values: Mapping[str, Any], dialect: Dialect, where: str, name: str) -> ImportedPreset:
    taken = take_over(values, dialect)
    kept = {key: _held(one) for key, one in values.items() if _is_kept(key, values, dialect, taken)}
    named = [key for key in kept if key in taken.refused or _is_named(key, values, dialect)]
    shown = one_line(", ".join(f"{key} {_shown(values[key])}" for key in named), 300)
    return ImportedPreset(
        SamplingPreset(f"{name}, of {dialect.program}", taken.overrides, {dialect.id: kept} if kept else {}),
        f"preset of {dialect.program}",
        (f"{where}: kept, not applied: {shown}",) if named else (),
    )


def _is_kept(key: str, values: Mapping[str, Any], dialect: Dialect, taken: TakenOver) -> bool:
    """Whether a key changes something that is not wished for here."""
    if key in taken.refused:
        return True
    if key in taken.done or (key == "do_sample" and values[key] is False) or dialect.is_off(key, values):
        return False
    # Of a sampler that is switched on in a way that is not known here, nothing was taken over.
    unknown = [one for one in dialect.leaders_on(key, values) if one in dialect.flags and one not in taken.done]
    return not (key in dialect.ours or key in dialect.spoken) or bool(unknown)


def _is_named(key: str, values: Mapping[str, Any], dialect: Dialect) -> bool:
    """What leads stands for what it leads, unless it is applied without it."""
    if key == dialect.order_key:
        return bool(values[key])
    leaders = dialect.leaders_on(key, values)
    return key not in dialect.quiet and all(one in dialect.ours for one in leaders)


def _held(value: Any) -> Any:
    """A value as TOML can hold it; one that it cannot is kept as JSON in a text."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        inner = {storable(key): _held(one) for key, one in value.items() if one is not None}
        return inner if len(inner) == len(value) else _as_text(value)
    if isinstance(value, list) and not any(one is None or isinstance(one, dict | list) for one in value):
        return [_held(one) for one in value]
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_WHOLE else _as_text(value)
    return value if isinstance(value, float) else _as_text(value)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except (TypeError, ValueError):
        return storable(shown_value(value))


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else shown_value(value), 40)


def _bytes(path: Path) -> bytes:
    try:
        return files.read_bytes(path, largest=LARGEST_FILE, kind="preset")
    except files.UntrustedFileError as error:
        raise SamplingPresetError(str(error)) from None


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SamplingPresetError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
