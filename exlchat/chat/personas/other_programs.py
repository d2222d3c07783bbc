"""Characters of text-generation-webui and roles of aichat as personas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from exlchat.chat.personas.card_values import number_value, text_value
from exlchat.chat.personas.persona import Character, Example, Persona, PersonaError
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.untrusted.text import one_line
from exlchat.untrusted.yaml_reader import YamlError, read_yaml

_NAMES = ("name", "bot", "<|bot|>", "char_name")
_USERS = ("your_name", "user", "<|user|>")
_FRONT = re.compile(r"---[ \t]*\n(?P<yaml>.*?)\n---[ \t]*(?:\n|\Z)(?P<prompt>.*)", re.DOTALL)
_FEW_SHOT = re.compile(r"^### (INPUT|OUTPUT):[ \t]*$", re.MULTILINE)
_AICHAT = {"__now__": "{{isodate}} {{isotime}}"}
_AICHAT_MACRO = re.compile(r"\{\{(__\w+__)\}\}")
INPUT_MARK = "__INPUT__"

LARGEST_YAML = 200_000
"""Characters; a character has a few thousand."""


def yaml_value(text: str, where: str) -> Any:
    """The value that the YAML `text` writes; `where` names it in errors.

    Raises:
        PersonaError: as `read_yaml` refuses it.
    """
    try:
        return read_yaml(text, most=LARGEST_YAML)
    except YamlError as error:
        raise PersonaError(f"{where}: {error}") from None


def is_webui_character(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and any(isinstance(value.get(key), str) for key in _NAMES)
        and any(isinstance(value.get(key), str) for key in ("context", "greeting"))
    )


def persona_of_webui(value: Mapping[str, Any]) -> Persona:
    """The persona of a text-generation-webui character: its `context` is the system prompt."""
    name = next((text_value(value[key]) for key in _NAMES if isinstance(value.get(key), str)), "")
    user = next((text_value(value[key]) for key in _USERS if isinstance(value.get(key), str)), "")
    foreign = {"webui_json": json.dumps(value, ensure_ascii=True)}
    return Persona(
        one_line(name, 80) or "Unnamed",
        system=text_value(value.get("context")).strip(),
        greeting=text_value(value.get("greeting")).strip(),
        character=Character(),
        foreign={**foreign, "webui_user": user} if user else foreign,
    )


def persona_of_aichat(text: str, name: str, where: str) -> tuple[Persona, list[str]]:
    """The persona of an aichat role, and lines about what it asks for that personas have not.

    Args:
        text: of the file, Markdown with optional YAML between lines of `---`.
        name: of the role, which is that of its file.
        where: names it in errors.

    Raises:
        PersonaError: its front matter is broken, or there is no prompt.
    """
    text = text_value(text)
    parts = _FRONT.match(text)
    # With the first --- line, which begins a document of YAML too, so that lines are counted as in the file.
    front = yaml_value(text[: parts.end("yaml")], where) if parts else {}
    if not isinstance(front, dict):
        raise PersonaError(f"{where}: what stands between the --- lines is not a list of names and values")
    system, examples = _few_shot(parts["prompt"] if parts else text)
    if not system and not examples:
        raise PersonaError(f"{where}: there is no prompt in it")
    notices = []
    if INPUT_MARK in system:
        notices.append(f"{where}: {INPUT_MARK} stays as it is; write the prompt so that the message follows it")
    known = {key: value for key, value in front.items() if key in ("temperature", "top_p", "model")}
    if unknown := sorted(map(str, front.keys() - known.keys())):
        notices.append(f"{where}: kept, not followed: {one_line(', '.join(unknown), 100)}")
    try:
        sampling = SamplingOverrides(
            temperature=number_value(known.get("temperature")), top_p=number_value(known.get("top_p"))
        )
    except ValueError as error:
        raise PersonaError(f"{where}: {error}") from None
    persona = Persona(
        one_line(name, 80) or "Unnamed",
        system=_AICHAT_MACRO.sub(lambda found: _AICHAT.get(found[1], found[0]), system),
        examples=examples,
        sampling=sampling,
        model=one_line(text_value(known.get("model")), 200) or None,
        foreign={"aichat_json": json.dumps(front, ensure_ascii=True)} if front else {},
    )
    return persona, notices


def _few_shot(prompt: str) -> tuple[str, tuple[Example, ...]]:
    """The system text, and the pairs of `### INPUT:` and `### OUTPUT:` behind it; other orders are plain text."""
    pieces = _FEW_SHOT.split(prompt)
    marks = pieces[1::2]
    if not marks or len(marks) % 2 or marks != ["INPUT", "OUTPUT"] * (len(marks) // 2):
        return prompt.strip(), ()
    said = [piece.strip() for piece in pieces[2::2]]
    return pieces[0].strip(), tuple(Example(*pair) for pair in zip(said[::2], said[1::2], strict=True))
