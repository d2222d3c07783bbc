"""Values from files of others, each looked at before it is used: texts, times, mappings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from exlchat.chat.exchange.limits import DEPTH, ExchangeError
from exlchat.untrusted.text import storable

_LATEST = 253_402_214_400.0
"""The last day of the year 9999, in Unix seconds: what Python's dates can show."""

_UNITS = (1.0, 1e3, 1e6, 1e9)
_YEAR_2100 = 4_102_444_800.0

_HUMANISED = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2}) ?@ ?(\d{1,2})h ?(\d{1,2})m ?(\d{1,2})s ?(?:(\d{1,3})ms)?", re.ASCII
)
_PATTERNS = ("%B %d, %Y %I:%M%p", "%b %d, %Y %H:%M", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%Y%m%d-%H-%M-%S")


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: object) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(value: object) -> str | None:
    """A string that can be stored; `None` for everything else."""
    return storable(value) if isinstance(value, str) else None


def name_of(value: object) -> str | None:
    """A string that says something, at most 500 characters of it; a number is one as well."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
        return str(value)
    return storable(value.strip()[:500]) or None if isinstance(value, str) else None


def seconds_of(value: object) -> float | None:
    """Unix seconds of a number (seconds to nanoseconds, told by its size) or of a date as programs write it.

    A date without a time zone is local. `None` for what is no time, NaN, or lies outside the years 1970 to 9999.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _of_number(value)
    if not isinstance(value, str) or not value or len(value) > 60:
        return None
    text = value.strip()
    try:
        return _of_number(float(text))
    except ValueError:
        pass
    return next((found for read in (_iso, _humanised, _written) if (found := read(text)) is not None), None)


def _of_number(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    for unit in _UNITS:
        if number / unit <= _YEAR_2100:
            return number / unit
    return None


def _iso(text: str) -> float | None:
    return _guarded(lambda: datetime.fromisoformat(text))


def _humanised(text: str) -> float | None:
    """SillyTavern's `2023-5-10 @14h 45m 12s 345ms`."""
    match = _HUMANISED.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, millis = (int(part or 0) for part in match.groups())
    return _guarded(lambda: datetime(year, month, day, hour, minute, second, millis * 1000))


def _written(text: str) -> float | None:
    for pattern in _PATTERNS:
        found = _guarded(lambda pattern=pattern: datetime.strptime(text, pattern))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def _guarded(read: Callable[[], datetime]) -> float | None:
    try:
        seconds = read().timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if 0 < seconds < _LATEST else None


def shown_time(seconds: float) -> str:
    """`2026-11-21 17:10 UTC`; empty for what no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def clean(value: object, level: int = 0) -> Any:
    """A JSON value that can be stored: texts without lone surrogates, numbers that JSON has, else `None`.

    Raises:
        ExchangeError: more than `DEPTH` levels.
    """
    if level > DEPTH:
        raise ExchangeError(f"it is nested more than {DEPTH} levels deep")
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): clean(entry, level + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean(entry, level + 1) for entry in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return None


def rest(value: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """What `value` holds beside the `known` fields and says something.

    Raises:
        ExchangeError: as `clean`.
    """
    empty: tuple[object, ...] = (None, "", [], {})
    return {storable(k): clean(v, 1) for k, v in value.items() if k not in known and v not in empty}


def content_parts(value: object) -> tuple[str, bool]:
    """The text of a message's content, a string or parts, and whether some of it is no text.

    A part that is no text leaves its kind in brackets, as `[image]`, so that the reader sees that something is missing.
    """
    if not isinstance(value, list):
        return text_of(value) or "", not (value is None or isinstance(value, str))
    shown: list[str] = []
    other = False
    for text, kind in _parts(value):
        other = other or text is None
        if text is None:
            shown.append(f"[{kind}]")
        elif text:
            shown.append(text)
    return "\n".join(shown), other


def _parts(parts: list[Any]) -> Iterator[tuple[str | None, str]]:
    """Text, or `None` with the kind of a part."""
    for part in parts:
        if isinstance(part, str):
            yield storable(part), "text"
            continue
        fields = mapping(part)
        kind = name_of(fields.get("type")) or name_of(fields.get("content_type")) or "attachment"
        text = text_of(fields.get("text"))
        if text is not None and ("text" in kind or "transcription" in kind or kind == "attachment"):
            yield text, kind
        else:
            yield None, kind.removeprefix("input_").removesuffix("_url").removesuffix("_asset_pointer")


def split_thinking(text: str) -> tuple[str | None, str]:
    """What stands between `<think>` and `</think>` at the beginning of an answer, and the answer behind it."""
    for opening, closing in (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]")):
        begun = text.lstrip()
        if begun.startswith(opening) and (end := begun.find(closing)) >= 0:
            thought = begun[len(opening) : end].strip()
            return thought or None, begun[end + len(closing) :].lstrip()
    return None, text
