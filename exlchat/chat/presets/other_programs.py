"""Sampling presets of text-generation-webui (YAML), SillyTavern's for text completion and KoboldAI's (JSON), made ours.

They come from strangers: bounded, nothing run. A value that the engine draws by is taken over, one that means "off" is
dropped, and all others are kept in `[foreign]`; those that would change an answer are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exlchat.chat.presets.kobold import KOBOLD, is_kobold
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.samplers import FIRST_NAMES, MISSING_NAMES, SILLYTAVERN, STEP_NAMES, WEBUI, Dialect
from exlchat.chat.presets.toml_file import LARGEST_FILE, parse_preset
from exlchat.chat.toml_values import shown_value
from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import SamplingSettings, order_with_last
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


_DRAWN = ("Temperature", "Truncation")
_DECIDING = ("temperature", "top_k")
_LAST = ("temperature", "dynamic_temperature", "quadratic_sampling")
"""What `temperature_last` puts at the end of the order, in this order."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What was made of a preset.

    Args:
        overrides: the values.
        refused: keys of samplers that are here, with values that are not possible.
        done: keys that are followed without being a value: switches of others, orders.
    """

    overrides: SamplingOverrides
    refused: frozenset[str]
    done: frozenset[str]


def take_over(values: Mapping[str, Any], dialect: Dialect) -> TakenOver:
    leading = {
        key: one for key, one in dialect.usual.items() if key not in dialect.led or dialect.leaders_on(key, values)
    }
    values = {**leading, **{key: one for key, one in values.items() if one is not None}}
    if values.get("send_banned_tokens") is False:
        values.pop("banned_tokens", None)
        values.pop("global_banned_tokens", None)
    given, refused = _given(values, dialect)
    spoken = _spoken(values, dialect, refused)
    if values.get("do_sample") is False:
        given["temperature"] = 0.0
    if given.get("temperature") == 0 or given.get("top_k") == 1:
        # The most likely token is taken whatever else is said.
        idle = {name for name, one in CONTROLS.items() if one.group in _DRAWN and name not in _DECIDING}
        given = {name: one for name, one in given.items() if name not in idle or one == CONTROLS[name].off}
        refused = {key for key in refused if dialect.ours.get(key) not in idle and key not in dialect.flags}
        done = {*dialect.flags, dialect.order_key, "temperature_last"}
        return TakenOver(_overrides(given, spoken, refused, dialect), frozenset(refused), frozenset(done))
    flags = {key for key in dialect.flags if key in values and key not in refused}
    followed = {key for key in flags if values[key] in dialect.flags[key]}
    overrides, orders = _ordered(values, _overrides(given, spoken, refused, dialect), dialect)
    return TakenOver(overrides, frozenset(refused), frozenset(followed | orders))


def _overrides(
    given: Mapping[str, Any], spoken: Mapping[str, Any], refused: set[str], dialect: Dialect
) -> SamplingOverrides:
    if dialect.others_off:
        off = {name for name, one in CONTROLS.items() if name in given and given[name] == one.off}
        usual = {} if any(dialect.ours.get(key) == "temperature" for key in refused) else {"temperature": 1.0}
        given = usual | {name: one for name, one in given.items() if name not in off}
    return SamplingOverrides(**given, **spoken, others_off=dialect.others_off)


def _given(values: Mapping[str, Any], dialect: Dialect) -> tuple[dict[str, Any], set[str]]:
    """The values of ours, and the keys of those that cannot be taken over."""
    given: dict[str, Any] = {}
    refused: set[str] = set()
    for key, name in dialect.ours.items():
        if key not in values:
            continue
        if key in dialect.led and not _followed(key, values, dialect):
            _switch_off(name, given)
        elif dialect.is_off(key, values):
            given.setdefault(name, CONTROLS[name].off)
        else:
            try:
                given[name] = dialect.read(key, values[key])
            except ValueError:
                refused.add(key)
    if given.get("dynatemp_low", 0.0) > given.get("dynatemp_high", float("inf")):
        refused |= {key for key, name in dialect.ours.items() if name == "dynatemp_low" and key in values}
    _refuse_whole(values, dialect, given, refused)
    return given, refused


def _spoken(values: Mapping[str, Any], dialect: Dialect, refused: set[str]) -> dict[str, Any]:
    """What an answer is asked to be; the keys that cannot be followed are refused."""
    spoken: dict[str, Any] = {}
    for key, (name, read) in dialect.spoken.items():
        if key not in values or key in refused or dialect.is_off(key, values):
            continue
        try:
            value = read(values[key])
            value = spoken.get(name, ()) + value if isinstance(value, tuple) else value
            SamplingOverrides(**{name: value})
        except ValueError:
            refused.add(key)
        else:
            if value != ():
                spoken[name] = value
    return spoken


def _followed(key: str, values: Mapping[str, Any], dialect: Dialect) -> bool:
    leaders = dialect.leaders_on(key, values)
    return any(one not in dialect.flags or values[one] in dialect.flags[one] for one in leaders)


def _switch_off(name: str, given: dict[str, Any]) -> None:
    """A sampler that a switch has off is off here; of what only belongs to one, nothing is said."""
    if CONTROLS[name].leader is None and name not in ("penalty_range",):
        given.setdefault(name, CONTROLS[name].off)


def _refuse_whole(values: Mapping[str, Any], dialect: Dialect, given: dict[str, Any], refused: set[str]) -> None:
    """A sampler of which one value cannot be is not applied with another in its place: all of it is refused."""
    for leader in {
        CONTROLS[dialect.ours[key]].leader or dialect.ours[key] for key in refused if _is_control(key, dialect)
    }:
        family = {name for name, one in CONTROLS.items() if leader in (name, one.leader)}
        for key, name in dialect.ours.items():
            if name in family and key in values and not dialect.is_off(key, values):
                refused.add(key)
        for name in family:
            given.pop(name, None)
    refused |= {one for key in list(refused) for one in dialect.leaders_on(key, values) if one in dialect.flags}


def _is_control(key: str, dialect: Dialect) -> bool:
    return dialect.ours.get(key) in CONTROLS


# The order


def _ordered(
    values: Mapping[str, Any], overrides: SamplingOverrides, dialect: Dialect
) -> tuple[SamplingOverrides, set[str]]:
    """The overrides with the order of the preset, and which of its keys about that are followed in full."""
    sampling = overrides.apply(SamplingSettings())
    listed = dialect.listed(values)
    last = values.get("temperature_last") is True
    order = list(dialect.order) if listed is None else listed
    if last:
        order = [one for one in order if one not in _LAST] + list(_LAST)
    if set(order) - STEP_NAMES.keys() - FIRST_NAMES.keys() - MISSING_NAMES:
        return overrides, set()
    places = {
        STEP_NAMES[name]: place for place, name in enumerate(order) if name in STEP_NAMES and _is_meant(name, sampling)
    }
    steps = sorted(sampling.steps, key=lambda step: places.get(step, len(order)))
    if order and tuple(steps) != sampling.steps:
        overrides = replace(overrides, order=order_with_last(steps))
    followed = {"temperature_last"}
    if listed is not None and not _penalties_inside(order, sampling):
        followed.add(dialect.order_key)
    return overrides, followed if order else set()


def _is_meant(name: str, sampling: SamplingSettings) -> bool:
    """Of the two temperatures of an order only one is on."""
    if name == "dynamic_temperature":
        return sampling.dynatemp_high > 0
    return name != "temperature" or sampling.dynatemp_high == 0


def _penalties_inside(order: list[str], sampling: SamplingSettings) -> bool:
    """Whether something that comes before all steps here, and is on, comes behind one of them there."""
    steps = [place for place, name in enumerate(order) if STEP_NAMES.get(name) in sampling.steps]
    first = [place for place, name in enumerate(order) if name in FIRST_NAMES and sampling.is_on(FIRST_NAMES[name])]
    return bool(steps and first) and max(first) > min(steps)
