"""Prompt formats of other programs, made into formats of ours: what to write into a file of the user's own.

Read are instruction templates of text-generation-webui (YAML with Jinja, or with its older turn_template) and instruct
presets of SillyTavern (JSON, alone or in a file with other presets). They come from strangers: nothing is run, and the
format that comes out is checked like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tomlkit

from exlchat.chat.formats.table import TableError, from_table
from exlchat.chat.plain_text import one_line, storable
from exlchat.chat.untrusted_yaml import YamlError, read_yaml

MOST_CHARACTERS = 50_000


class PresetError(Exception):
    """What is wrong with a preset, as the end of a line that names its file."""


@dataclass(frozen=True, slots=True)
class ImportedFormat:
    """A format of another program.

    Args:
        kind: whose, for the user to read.
        ending: of the file that it becomes.
        text: of that file.
        name: what it calls itself; "" where it does not say.
        left_out: what of it our formats do not have, one thing each.
    """

    kind: str
    ending: Literal[".jinja", ".toml"]
    text: str
    name: str = ""
    left_out: tuple[str, ...] = ()


def read_preset(text: str) -> ImportedFormat:
    """The format in a file's text.

    Raises:
        PresetError: it is none, or a broken one.
    """
    if len(text) > MOST_CHARACTERS:
        raise PresetError(f"has more than {MOST_CHARACTERS:,} characters; a prompt format is a short text")
    content = _parsed(text)
    if not isinstance(content, dict):
        raise PresetError("holds no instruct preset and no instruction template; give a file of SillyTavern or tgw")
    if isinstance(content.get("instruction_template"), str):
        return ImportedFormat("text-generation-webui", ".jinja", _text(content, "instruction_template"))
    if isinstance(content.get("turn_template"), str):
        return _turn_template(content)
    instruct = content.get("instruct") if isinstance(content.get("instruct"), dict) else content
    if isinstance(instruct, dict) and ("input_sequence" in instruct or "output_sequence" in instruct):
        return _instruct(instruct, content)
    if "story_string" in content:
        raise PresetError("is a context preset, which says nothing of turns; give the instruct preset of that name")
    raise PresetError("holds no instruct preset and no instruction template; give a file of SillyTavern or tgw")


def _parsed(text: str) -> object:
    try:
        return json.loads(text) if text.lstrip().startswith("{") else read_yaml(text, most=MOST_CHARACTERS)
    except RecursionError:
        raise PresetError("is nested too deep; a prompt format is a table of strings") from None
    except ValueError as error:
        raise PresetError(f"is broken: {one_line(str(error), 120)}") from None
    except YamlError as error:
        raise PresetError(f"is {error}") from None


def _turn_template(content: Mapping[str, Any]) -> ImportedFormat:
    """The older templates of text-generation-webui: one turn of both, and a context before all."""
    turn = _text(content, "turn_template")
    before, asked, rest = turn.partition("<|user-message|>")
    between, answered, after = rest.partition("<|bot-message|>")
    if not (asked and answered):
        raise PresetError("turn_template lacks <|user-message|> or <|bot-message|>; mend it or take another file")
    names = {"<|user|>": _text(content, "user"), "<|bot|>": _text(content, "bot")}
    context = _text(content, "context")
    prefix, placed, suffix = context.partition("<|system-message|>")
    table: dict[str, Any] = {
        "system": {"prefix": prefix if placed else "", "suffix": suffix if placed else "\n"},
        "user": {"prefix": _replaced(before, names), "suffix": ""},
        "assistant": {"prefix": _replaced(between, names), "suffix": after},
    }
    table["assistant"]["generation_prompt"] = table["assistant"]["prefix"].rstrip(" ")
    default = _text(content, "system_message") if placed else context.rstrip("\n")
    if default:
        table["default_system"] = default
    return ImportedFormat("text-generation-webui", ".toml", _toml(table))


def _instruct(preset: Mapping[str, Any], whole: Mapping[str, Any]) -> ImportedFormat:
    """A preset of SillyTavern. With `wrap` a line break stands between a sequence and what is said, and behind that."""
    line = "\n" if preset.get("wrap") is True else ""
    asked, answered = _sequence(preset, "input_sequence"), _sequence(preset, "output_sequence")
    led = next((text for key in _SYSTEM_PREFIXES if (text := _sequence(preset, key))), "")
    if not led and preset.get("system_same_as_user") is True:
        led = asked
    led_end = next((text for key in _SYSTEM_SUFFIXES if (text := _sequence(preset, key))), "") or line or "\n"
    last = _sequence(preset, "last_output_sequence") or answered
    table: dict[str, Any] = {
        "system": {"prefix": led + (line if led else ""), "suffix": led_end},
        "user": {"prefix": asked + line, "suffix": _sequence(preset, "input_suffix") or line},
        "assistant": {"prefix": answered + line, "suffix": _sequence(preset, "output_suffix") or line},
    }
    table["assistant"]["generation_prompt"] = last + line
    stops = [_sequence(preset, "stop_sequence").strip()]
    if preset.get("sequences_as_stop_strings", True) is True:
        stops.append(asked.strip())
    table["stop"] = list(dict.fromkeys(stop for stop in stops if stop))
    prompt = whole.get("sysprompt") or preset.get("system_prompt")
    default = prompt.get("content") if isinstance(prompt, dict) else prompt
    if isinstance(default, str) and default.strip():
        table["default_system"] = _named(storable(default.strip()))
    reasoning = whole.get("reasoning")
    if isinstance(reasoning, dict):
        opening, closing = _text(reasoning, "prefix").strip(), _text(reasoning, "suffix").strip()
        if opening and closing:
            table["thinking"] = {"opening": opening, "closing": closing}
    left_out = [key for key in _LEFT_OUT if _sequence(preset, key)]
    left_out += ["context"] if isinstance(whole.get("context"), dict) else []
    name = one_line(_text(preset, "name") or _text(whole, "name"), 60)
    return ImportedFormat("SillyTavern", ".toml", _toml(table), name, tuple(left_out))


_SYSTEM_PREFIXES = ("story_string_prefix", "system_sequence_prefix", "system_sequence")
_SYSTEM_SUFFIXES = ("story_string_suffix", "system_sequence_suffix", "system_suffix")
_LEFT_OUT = (
    "first_output_sequence",
    "first_input_sequence",
    "last_input_sequence",
    "last_system_sequence",
    "user_alignment_message",
)


def _text(content: Mapping[str, Any], key: str) -> str:
    """A text that a file can hold, "" for none."""
    value = content.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise PresetError(f"{key} must be a text, not {one_line(repr(value), 40)}; mend it or take another file")
    return storable(value)


def _sequence(content: Mapping[str, Any], key: str) -> str:
    return _named(_text(content, key))


def _named(text: str) -> str:
    """`text` with names in the places of their macros."""
    return _replaced(text, {"{{user}}": "User", "{{char}}": "Assistant", "{{name}}": ""})


def _replaced(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _toml(table: Mapping[str, Any]) -> str:
    """A table as it is written, checked by the reader of our own."""
    text = tomlkit.dumps({key: value for key, value in table.items() if not isinstance(value, dict)})
    text += "".join("\n" + tomlkit.dumps({key: value}) for key, value in table.items() if isinstance(value, dict))
    try:
        from_table(text)
    except TableError as error:
        raise PresetError(f"makes no format: {error}") from None
    return text
