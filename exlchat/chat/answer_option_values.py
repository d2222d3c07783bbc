"""What an answer is asked to be, value by value: as it is typed, shown, and written into TOML files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exlchat.chat.answer_options import DRAFTS, PLAIN
from exlchat.chat.constraints import constraint_text, constraint_words, typed_constraint
from exlchat.chat.presets.control_values import texts_from, texts_to
from exlchat.untrusted.text import one_line

Kind = Literal["texts", "text", "whole", "limit", "switch", "choice", "constraint", "maybe"]
_OFF = ("off", "none", "default")
_ON = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_SHOWN_CELLS = 60


@dataclass(frozen=True, slots=True)
class AnswerOption:
    """One value of `AnswerOptions`.

    Args:
        kind: `limit` is a whole number or none, `maybe` is on, off, or left to something else.
        help: what it does, in a sentence.
        unset: what none means, for people.
        choices: of a `choice`.
    """

    kind: Kind
    help: str
    unset: str = "none"
    choices: tuple[str, ...] = ()


ANSWER_OPTIONS: Mapping[str, AnswerOption] = {
    "stop": AnswerOption("texts", "Texts that end an answer; they are not shown."),
    "ban": AnswerOption("texts", "Texts that never come: the answer goes back and takes another way."),
    "min_tokens": AnswerOption("whole", "An answer does not end by itself before so many tokens."),
    "begin": AnswerOption("text", "What every new answer begins with; the model goes on from there.", "nothing given"),
    "constraint": AnswerOption(
        "constraint", "What an answer has to be: schema, regex, choice or grammar, and what it says.", "anything"
    ),
    "think": AnswerOption(
        "maybe", "Whether the model thinks first, where its template can be told.", "left to the template"
    ),
    "thinking_budget": AnswerOption("limit", "Thoughts are closed after so many tokens.", "as long as it wants"),
    "negative": AnswerOption(
        "text",
        "The system prompt to lean away from, while guidance_scale is above 1.",
        "the conversation without a system prompt",
    ),
    "heal": AnswerOption("switch", "A text that goes on may finish the word in which it was cut."),
    "stop_repeating": AnswerOption("switch", "End an answer that says the same over and over."),
    "logprobs": AnswerOption("whole", "Keep the probabilities of so many likeliest tokens with every token; 0 is off."),
    "draft": AnswerOption(
        "choice", "Who guesses tokens ahead, which makes answers faster and not different.", choices=DRAFTS
    ),
}
"""By name, in the order to show them."""


def usual(name: str) -> Any:
    """The value that asks for nothing."""
    return getattr(PLAIN, name)


def from_text(name: str, text: str) -> Any:
    """A typed value as `AnswerOptions` holds it.

    Raises:
        ValueError: it cannot be, in one line.
    """
    text = text.strip()
    kind, word = ANSWER_OPTIONS[name].kind, text.lower()
    if kind == "texts":
        return texts_from(name, text)
    if kind in ("switch", "maybe", "choice"):
        return usual(name) if word == "default" else _one_of(name, word)
    if word in _OFF:
        return usual(name)
    if kind == "constraint":
        return typed_constraint(text)
    return unquoted(name, text) if kind == "text" else _whole(name, text)


def to_text(name: str, value: Any) -> str:
    """As one would type it; `from_text` gives the value back."""
    match ANSWER_OPTIONS[name].kind:
        case "texts":
            return texts_to(value)
        case "text":
            return json.dumps(value, ensure_ascii=not value.isprintable()) if value else "none"
        case "switch" | "maybe":
            return "none" if value is None else "on" if value else "off"
        case "constraint":
            return "none" if value is None else constraint_words(value)
    return "none" if value is None else str(value)


def shown(name: str, value: Any) -> str:
    if value is None or value in ((), ""):
        return ANSWER_OPTIONS[name].unset
    if ANSWER_OPTIONS[name].kind == "constraint":
        return one_line(f"{constraint_text(value)}", _SHOWN_CELLS)
    return one_line(to_text(name, value), _SHOWN_CELLS)


def _one_of(name: str, word: str) -> Any:
    value = ANSWER_OPTIONS[name]
    if value.kind == "maybe" and word == "none":
        return None
    found = dict(zip(value.choices, value.choices, strict=True)) or _ON
    if word not in found:
        words = ", ".join(value.choices) or ("on, off or none" if value.kind == "maybe" else "on or off")
        raise ValueError(f"{name} is {one_line(word, 40)!r}; it must be one of {words}")
    return found[word]


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {one_line(text, 40)!r}; it must be a whole number, or off") from None


def unquoted(name: str, text: str) -> str:
    """A typed text as it is, or in quotes where white space or line ends matter.

    Raises:
        ValueError: it stands in quotes and is no text.
    """
    if not (len(text) > 1 and text.startswith('"') and text.endswith('"')):
        return text
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        raise ValueError(f"{name} is no text in quotes; a backslash stands before a quote in it") from None
