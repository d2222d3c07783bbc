"""Text -> values: JSON, JSON lines, YAML. Nothing here makes objects of a file's choosing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.chat.exchange.limits import DEPTH, YAML_CHARACTERS, ExchangeError, Problems
from exlchat.untrusted.yaml_reader import YamlError, read_yaml

_MOST_DIGITS = 1000

_BROKEN_LINES_IN_A_ROW = 1000
"""So many lines that are no JSON one after another, and the file is taken for something else."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a file holds.

    Args:
        values: one for a JSON or YAML file; for JSON lines one for each line.
        lines: the number of each value's line, from 1.
        by_line: whether it is JSON lines.
        yaml: whether it is YAML.
    """

    values: Sequence[Any]
    lines: Sequence[int]
    by_line: bool = False
    yaml: bool = False


def parse(text: str, problems: Problems) -> Parsed:
    """JSON, JSON lines or YAML, whatever the text is.

    Raises:
        ExchangeError: it is none of them, damaged, or nested too deep.
    """
    begun = text.lstrip("\ufeff \t\r\n")
    if not begun:
        raise ExchangeError("it is empty")
    if begun[0] not in "{[":
        return _yaml(text)
    try:
        return Parsed([_json(begun)], [1])
    except ValueError as error:
        if _are_json_lines(begun):
            return _json_lines(text, problems)
        raise ExchangeError(_why(error, begun)) from None


def _json(text: str) -> Any:
    try:
        # NaN and the infinities are no JSON, but Python and JavaScript write them.
        return json.loads(text, parse_constant=lambda _: None, parse_int=_whole)
    except RecursionError:
        raise ExchangeError(f"it is nested more than {DEPTH} levels deep") from None


def _whole(digits: str) -> int | str:
    """Python refuses to compute a number of more digits; nothing computes with it here, so its text will do."""
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _are_json_lines(begun: str) -> bool:
    """Whether one of the first two lines is an object by itself; what follows, or the first, may be damaged."""
    lines = [line for line in begun.split("\n", 3)[:3] if line.strip()]
    return len(lines) > 1 and begun[0] == "{" and any(_is_object(line) for line in lines[:2])


def _is_object(line: str) -> bool:
    try:
        return bool(_json(line)) and line.lstrip()[0] == "{"
    except (ValueError, ExchangeError):
        return False


def _json_lines(text: str, problems: Problems) -> Parsed:
    """Only a line feed ends a line: others are allowed inside JSON's strings."""
    values: list[Any] = []
    numbers: list[int] = []
    broken = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values.append(_json(line.lstrip("\ufeff")))
            numbers.append(number)
            broken = 0
        except (ValueError, ExchangeError) as error:
            broken += 1
            if broken > _BROKEN_LINES_IN_A_ROW:
                raise ExchangeError(f"from line {number - broken + 1} on it is no JSON lines") from None
            what = str(error) if isinstance(error, ExchangeError) else _why(error, line)
            problems.leave_out(f"line {number}", f"left out: {what}")
    return Parsed(values, numbers, by_line=True)


def _why(error: ValueError, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"it is no JSON ({error})"
    where = f"line {error.lineno}, column {error.colno}"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"the JSON breaks off ({where}); it is damaged or not whole"
    return f"it is no JSON ({error.msg.lower()} at {where})"


def _yaml(text: str) -> Parsed:
    if not re.search(r"^messages:", text, re.MULTILINE):
        raise ExchangeError("it is none of the formats that are read")
    try:
        return Parsed([read_yaml(text, most=YAML_CHARACTERS)], [1], yaml=True)
    except YamlError as error:
        raise ExchangeError(f"it is {error}") from None
