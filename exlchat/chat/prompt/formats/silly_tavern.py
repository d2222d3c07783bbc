"""Instruct presets of SillyTavern, alone or in a file with other presets, as tables of ours.

What they mean is in that program (`public/scripts/instruct-mode.js`, and `Generate` in `public/script.js`): a sequence
stands before a message, a suffix behind it; with `wrap` a line break follows a sequence that is not empty, and stands
for a suffix that is; the prompt ends with the last output sequence, without its outer white space when wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exlchat.chat.prompt.formats.imported import ImportedFormat, as_toml, text_at
from exlchat.chat.prompt.formats.table_source import SYSTEM
from exlchat.untrusted.text import one_line, storable

_NAMES = "names_behavior always: names stand before texts where a persona speaks, and nowhere else"
_MACRO = re.compile(r"\{\{\s*([a-z]\w*)[^{}]*\}\}", re.IGNORECASE)
_WRITTEN = re.compile(r"\{\{(noop|newline)\}\}", re.IGNORECASE)
_NAME = re.compile(r"\{\{name\}\}", re.IGNORECASE)
_OURS = frozenset({"user", "char", "name"})
_UNFOLLOWED = ("user_alignment_message", "last_system_sequence", "activation_regex", "skip_examples")
_SEQUENCES = (
    *("input_sequence", "output_sequence", "system_sequence", "last_system_sequence", "stop_sequence"),
    *("first_input_sequence", "last_input_sequence", "first_output_sequence", "last_output_sequence"),
    *("story_string_prefix", "system_sequence_prefix", "separator_sequence"),
    *("input_suffix", "output_suffix", "system_suffix", "story_string_suffix", "system_sequence_suffix"),
)
_SWITCHES = ("wrap", "macro", "names", "names_behavior", "system_same_as_user", "sequences_as_stop_strings")
_KNOWN = frozenset({"name", "system_prompt", *_SEQUENCES, *_SWITCHES, *_UNFOLLOWED})
_IDLE = frozenset({"enabled", "preset", "derived", "bind_to_context", "names_force_groups"})
"""Which of several presets is taken, and names in talks of more than two, say nothing of a prompt here."""


def instruct_preset(preset: Mapping[str, Any], whole: Mapping[str, Any]) -> ImportedFormat:
    """The format of an instruct preset; `whole` is the file that holds it, which may be the same.

    Raises:
        PresetError: a sequence is no text, or there are none.
    """
    line = "\n" if preset.get("wrap") is True else ""
    asked, answered = _sequence(preset, "input_sequence"), _sequence(preset, "output_sequence")
    ends = "separator_sequence" if "separator_sequence" in preset else "output_suffix"
    table: dict[str, Any] = {
        "stop": _stops(preset, line),
        "system": _system(preset, line),
        "user": {"prefix": _led(asked, line), "suffix": _sequence(preset, "input_suffix") or line},
        "assistant": {"prefix": _led(answered, line), "suffix": _sequence(preset, ends) or line},
    }
    _add_first_and_last(table, preset, line)
    _add_openings(table, preset, line)
    prompt = whole.get("sysprompt") or preset.get("system_prompt")
    default = prompt.get("content") if isinstance(prompt, dict) else prompt
    if isinstance(default, str) and default.strip():
        table = {"default_system": storable(default.strip()), **table}
    reasoning = whole.get("reasoning")
    if isinstance(reasoning, dict):
        opening, closing = text_at(reasoning, "prefix").strip(), text_at(reasoning, "suffix").strip()
        if opening and closing:
            table["thinking"] = {"opening": opening, "closing": closing}
    return ImportedFormat(
        "SillyTavern",
        ".toml",
        as_toml(table),
        one_line(text_at(preset, "name") or text_at(whole, "name"), 60),
        tuple(_left_out(preset, whole)),
        (_NAMES,) if "names" in table else (),
    )


def _system(preset: Mapping[str, Any], line: str) -> dict[str, str]:
    """What stands around the system prompt.

    Newer files say so; older ones may, and their system prompt is a line; of those that do not, a message of the
    system is what comes nearest: the context preset that would say it is another file.
    """
    if "story_string_prefix" in preset or "story_string_suffix" in preset:
        prefix, suffix = _sequence(preset, "story_string_prefix"), _sequence(preset, "story_string_suffix") or line
    elif preset.get("system_sequence_prefix") or preset.get("system_sequence_suffix"):
        prefix, end = _sequence(preset, "system_sequence_prefix"), _sequence(preset, "system_sequence_suffix")
        suffix = (line + end if end else "") + "\n"
    else:
        kind = "input" if preset.get("system_same_as_user") is True else "system"
        prefix, suffix = _sequence(preset, f"{kind}_sequence"), _sequence(preset, f"{kind}_suffix") or line
    return {"prefix": _led(prefix, line), "suffix": suffix}


def _add_first_and_last(table: dict[str, Any], preset: Mapping[str, Any], line: str) -> None:
    """Sequences of the first message and of the last question, which is not called the first even if it is."""
    first, last = _sequence(preset, "first_input_sequence"), _sequence(preset, "last_input_sequence")
    if first:
        table["user"] |= {"first_prefix": _led(first, line), "last_prefix": table["user"]["prefix"]}
    if last:
        table["user"]["last_prefix"] = _led(last, line)
    if answer := _sequence(preset, "first_output_sequence"):
        table["assistant"]["first_prefix"] = _led(answer, line)


def _add_openings(table: dict[str, Any], preset: Mapping[str, Any], line: str) -> None:
    """What the prompt ends with, and what with names: behind a sequence that has lost its space, the name has it."""
    usual, last = text_at(preset, "output_sequence"), text_at(preset, "last_output_sequence")
    sequence = _sequence(preset, "last_output_sequence" if last else "output_sequence")
    # The line break at the end of the last message and the one before the sequence are one.
    line_before = "" if table["user"]["suffix"].endswith("\n") else line
    plain = (line + sequence).rstrip() + line if line else sequence
    table["assistant"]["generation_prompt"] = plain if not line or line_before else plain.removeprefix(line)
    if preset.get("names_behavior") == "always" or preset.get("names") is True:
        space = usual[-1:] if last and usual[-1:].isspace() and not last[-1:].isspace() else ""
        opening = line_before + sequence + line + space + "{{char}}:"
        table["names"] = {"prefix": "{{name}}: ", "generation_prompt": opening}


def _stops(preset: Mapping[str, Any], line: str) -> list[str]:
    """Each line of each sequence, as a line of its own where they are wrapped, and what an answer is cut at."""
    cut = _sequence(preset, "stop_sequence")
    sequences = [cut]
    if preset.get("sequences_as_stop_strings", True) is not False:
        speakers = {"input": "{{user}}", "output": "{{char}}", "first_output": "{{char}}", "last_output": "{{char}}"}
        for kind, speaker in {**speakers, "system": SYSTEM, "last_system": SYSTEM}.items():
            sequences.append(_NAME.sub(speaker, _sequence(preset, f"{kind}_sequence")))
    lines = dict.fromkeys("\n".join(sequences).split("\n"))
    stops = [line + one for one in lines if one.strip()]
    if cut.strip() and not any(one in cut for one in stops):
        stops.append(cut)
    return stops


def _left_out(preset: Mapping[str, Any], whole: Mapping[str, Any]) -> list[str]:
    named = [key for key in _UNFOLLOWED if preset.get(key)]
    if preset is not whole and isinstance(whole.get("context"), dict):
        named.append("context")
    others = [key for key, value in preset.items() if value and key not in _KNOWN and key not in _IDLE]
    named += [one_line(storable(str(key)), 40) for key in others]
    texts = "".join(_sequence(preset, key) for key in _SEQUENCES)
    macros = {found[1].lower() for found in _MACRO.finditer(texts)}
    named += [f"{{{{{one}}}}}" for one in sorted(macros - _OURS)]
    # Names are names here even where they stand for themselves there.
    return named + (["macro"] if preset.get("macro") is False and macros & _OURS else [])


def _led(sequence: str, line: str) -> str:
    return sequence + line if sequence else ""


def _sequence(preset: Mapping[str, Any], key: str) -> str:
    """A sequence whose macros that are no names stand resolved."""
    return _WRITTEN.sub(lambda found: "\n" if found[1].lower() == "newline" else "", text_at(preset, key))
