"""Types of command-line arguments: text to value, or one line that says what is wrong with it."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from exlchat import paths
from exlchat.chat.constraints import constraint_of
from exlchat.chat.presets.control_values import from_text, require_control
from exlchat.chat.speech import DraftChoice
from exlchat.ext.targets import FAT, Targets, parse_capability
from exlchat.llm.constraint import Constraint
from exlchat.untrusted.text import storable

Parsed = TypeVar("Parsed")
OPTIONS = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p"}
"""Those controls of sampling that have an option of their own."""


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argument type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            upper = "or more" if most is None else f"to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} {upper}")
        return value

    return parse


def said(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """An argument type whose `ValueError` says itself what is wrong."""

    def parse_argument(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def whole_list(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, ascending, each once."""
    return tuple(sorted({whole(1)(part) for part in text.split(",")}))


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(text.split(","))


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive(most: int) -> Callable[[str], float]:
    """An argument type: a number above 0."""

    def parse(text: str) -> float:
        value = number(text)
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, at most {most:,}")
        return value

    return parse


def not_negative(most: int) -> Callable[[str], float]:
    """An argument type: a number, 0 or above."""

    def parse(text: str) -> float:
        value = number(text)
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or above, at most {most:,}")
        return value

    return parse


def program(text: str) -> Path:
    """As a shell would find it: a bare name on PATH, anything else as a file."""
    path = paths.expanded(text)
    return Path(shutil.which(text) or path).absolute()


def targets(text: str) -> Targets:
    """Compute capabilities with commas between them, or `all`."""
    if text == "all":
        return FAT
    try:
        capabilities = {parse_capability(part) for part in text.split(",")}
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Targets(tuple(sorted(capabilities)))


def sampled(text: str) -> tuple[str, Any]:
    """A control of how tokens are drawn, and its value: NAME=VALUE."""
    name, sign, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE, such as xtc_probability=0.5")
    if name in OPTIONS:
        raise argparse.ArgumentTypeError(f"{name} has an option of its own; say {OPTIONS[name]} {value}")
    try:
        require_control(name)
        return name, from_text(name, value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def held_to(word: str) -> Callable[[str], Constraint]:
    """An argument type: a schema, a regex or a grammar."""
    return said(lambda text: constraint_of(word, text))


def drafted_by(text: str) -> DraftChoice | Path:
    """A word, or the folder of a model."""
    words: tuple[DraftChoice, ...] = ("auto", "off", "ngram")
    for word in words:
        if text == word:
            return word
    path = paths.expanded(text)
    try:
        there = bool(text) and path.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise argparse.ArgumentTypeError(f"{text!r} is no folder of a model; give one, or {', '.join(words)}")
    return path.absolute()


def some_text(text: str) -> str:
    """Anything but nothing."""
    return _something(text, "the text is empty")


def stop_text(text: str) -> str:
    """A text that ends answers."""
    return _something(text, "the text is empty, which would stop nothing")


def some_id(text: str) -> str:
    """The beginning of an id, which the empty text is of all."""
    return _something(text, "the id is empty; exlchat sessions list and show print ids")


def _something(text: str, otherwise: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(otherwise)
    if text != storable(text):
        raise argparse.ArgumentTypeError("the text is not UTF-8")
    return text
