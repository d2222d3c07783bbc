"""The older instruction templates of text-generation-webui: `turn_template`, one turn of both, behind a `context`.

What they mean is in that program of 2023 (`modules/chat.py`, the prompt of the instruct mode): the context stands
before all turns as it is; what is behind `<|bot|>` is the model's part of a turn; `<|round|>` counts turns from 0; a
backslash with an n is a line break; names lose outer white space, and the end of the prompt its last spaces. Its first
files say `your_name` and `name` for `user` and `bot`, and `<user>` for `<|user|>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exlchat.chat.prompt.formats.imported import ImportedFormat, PresetError, as_toml, text_at

_USUAL = "<|user|>\n<|user-message|>\n<|bot|>\n<|bot-message|>\n"
"""Of a file with an empty one."""
_MARK = re.compile(r"[<\[]\S+[>\]]|^#|^[A-Z]+:", re.MULTILINE)
"""What marks the system prompt of a model, or a turn of a talk, in a context."""
_FIRST_WORDS = re.compile(r"<(user|user-message|bot|bot-message|round)>")


def turn_template(content: Mapping[str, Any]) -> ImportedFormat:
    """The format of such a file.

    Raises:
        PresetError: it has no place for both messages.
    """
    turn = text_at(content, "turn_template").replace("\\n", "\n") or _USUAL
    if "<|user-message|>" not in turn:
        turn = _FIRST_WORDS.sub(r"<|\1|>", turn)
    before, asked, rest = turn.partition("<|user-message|>")
    between, answered, after = rest.partition("<|bot-message|>")
    if not (asked and answered):
        raise PresetError("turn_template lacks <|user-message|> or <|bot-message|>; mend it or take another file")
    behind, is_named, ahead = between.partition("<|bot|>")
    if not is_named:
        behind, ahead = "", between
    keys = {"<|user|>": ("user", "your_name"), "<|bot|>": ("bot", "name")}
    names = {mark: text_at(content, key if key in content else first).strip() for mark, (key, first) in keys.items()}
    rounds = {**names, "<|round|>": "{{round}}"}
    opening = _replaced(is_named + ahead, names)
    system, notes = _system(content)
    table: dict[str, Any] = {
        "stop": _stops(behind + is_named, after, names),
        **({"default_system": system.pop("default")} if "default" in system else {}),
        "system": system,
        "user": {"prefix": _replaced(before, rounds), "suffix": _replaced(behind, rounds)},
        "assistant": {"prefix": opening, "suffix": _replaced(after, names), "generation_prompt": opening.rstrip(" ")},
    }
    return ImportedFormat("text-generation-webui", ".toml", as_toml(table), notes=notes)


def _system(content: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What stands around a system prompt and in its place, and what is to be said of that."""
    context = text_at(content, "context")
    prefix, placed, suffix = context.partition("<|system-message|>")
    if placed:
        suffix = suffix.partition("<|system-message|>")[0]
        usual = text_at(content, "system_message")
        absent = {"default": usual} if usual else {"without": prefix + suffix}
        return {"prefix": prefix, "suffix": suffix, **absent}, ()
    if not context.strip():
        return {"prefix": "", "suffix": "", "without": context}, ()
    words = context.rstrip()
    space = context[len(words) :]
    if _MARK.search(words):
        note = "context has marks and no <|system-message|>: a system prompt stands behind it"
        return {"prefix": context, "suffix": space or "\n", "without": context}, (note,)
    note = "context has no <|system-message|>: a system prompt stands in the place of its words"
    return {"prefix": "", "suffix": space, "default": words}, (note,)


def _stops(before_answer: str, after_answer: str, names: Mapping[str, str]) -> list[str]:
    """What ends an answer there: the frame of another one, or of another question."""
    found = [_replaced(one, names).partition("<|round|>")[0] for one in (before_answer, after_answer + "<|user|>")]
    return list(dict.fromkeys(filter(None, (one.rstrip(" ") for one in found))))


def _replaced(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
