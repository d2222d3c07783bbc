"""JSON of strangers -> plain values: bounded in size and depth, and never a surprise."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from exlchat.untrusted.files import UntrustedFileError, read_bytes
from exlchat.untrusted.text import one_line

DEEPEST = 64
"""Lists and objects within each other; of the files read here the deepest needs about ten."""

_MOST_DIGITS = 1000
"""Of a whole number; beyond some thousands Python refuses it in words for programmers."""


class JsonError(Exception):
    """What is wrong with a text, as a clause behind "FILE: …".

    Args:
        clause: the clause.
        place: line and column of what is no JSON, each from 1; `None` where it is no place.
        problem: what is wrong there, without the place.
    """

    def __init__(self, clause: str, place: tuple[int, int] | None = None, problem: str = "") -> None:
        super().__init__(clause)
        self.place = place
        self.problem = problem or clause


def read_json_file(path: Path, *, largest: int, kind: str, endless: bool = False) -> Any:
    """The value that a file writes.

    Args:
        path, largest, kind: as of `files.read_bytes`.
        endless: as of `read_json`.

    Raises:
        UntrustedFileError: as of `files.read_bytes`, or what `read_json` says of it.
    """
    try:
        return read_json(read_bytes(path, largest=largest, kind=kind), most=largest, endless=endless)
    except JsonError as error:
        raise UntrustedFileError(path, str(error)) from None


def read_json(data: bytes, *, most: int, endless: bool = False) -> Any:
    """The value that `data` writes in UTF-8, UTF-16 or UTF-32.

    Args:
        data: of one value.
        most: bytes it may have.
        endless: whether NaN and Infinity are taken, and what no float can hold as Infinity: neither is JSON, but Python
            writes and reads them so, and with it the programs that write model folders.

    Raises:
        JsonError: too large, too deep, another encoding, or not JSON.
    """
    if len(data) > most:
        raise JsonError(f"its JSON is larger than {most // 10**6} MB; no such file is")
    try:
        text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start} is not UTF-8; save it as UTF-8") from None
    try:
        value = (
            json.loads(text, parse_int=_whole)
            if endless
            else json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        )
    except RecursionError:
        raise JsonError(f"its JSON is nested deeper than {DEEPEST} levels; mend it") from None
    except json.JSONDecodeError as error:
        told = f"not JSON: {one_line(str(error))}; mend it"
        raise JsonError(told, (error.lineno, error.colno), f"not JSON: {one_line(error.msg)}; mend it") from None
    except ValueError as error:
        raise JsonError(f"not JSON: {one_line(str(error))}; mend it") from None
    if _depth(value) > DEEPEST:
        raise JsonError(f"its JSON is nested deeper than {DEEPEST} levels; mend it")
    return value


def write_json(value: Any) -> bytes:
    """`value` as readable JSON in UTF-8, with a newline at its end; lone surrogates, which UTF-8 has not, escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", f"{text}\n").encode()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits[:20])


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level and depth <= DEEPEST:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = [one for one in inner if isinstance(one, dict | list)]
        depth += bool(inner) or bool(level)
    return depth
