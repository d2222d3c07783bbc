"""What a setting can be: kinds of values, each read from TOML and from typed text, checked, and written as TOML."""

from __future__ import annotations

import json
import math
import os
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

from exlchat.chat.presets.control_values import from_plain, require_control, to_plain
from exlchat.llm.controls import CONTROLS

TomlValue = str | int | float | bool | list[Any] | dict[str, Any] | None
KeyTable = tuple[tuple[str, tuple[str, ...]], ...]
"""Ids of actions with their keys, in the order of the file."""
SamplingTable = tuple[tuple[str, Any], ...]
"""Controls with their values, in the order of the file."""
OWN_KEYS = ("temperature", "top_k", "top_p", "min_p")
"""The controls of sampling that are settings themselves."""
CONTROL_NAMES = tuple(name for name in CONTROLS if name not in OWN_KEYS)
"""Those that are rows of the table of sampling."""

_SHOWN = 80
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value. What cannot be is a `ValueError` that goes on behind the name: "is 5; it must be ..."."""

    @property
    def what(self) -> str:
        """Which values there are, as the end of a sentence."""
        raise NotImplementedError

    def from_toml(self, value: object) -> Any:
        """The value that stands in the file, checked."""
        raise NotImplementedError

    def from_text(self, text: str) -> Any:
        """The value that was typed, or stands in the environment, checked."""
        return self.from_toml(text)

    def to_text(self, value: Any) -> str:
        """As one would type it; `from_text` gives the value back."""
        return str(value)

    def to_toml(self, value: Any) -> TomlValue:
        """As the file has it; `from_toml` gives the value back."""
        result: TomlValue = value
        return result

    def refused(self, value: object) -> ValueError:
        return ValueError(f"is {_shown(value)}; it must be {self.what}")


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    @property
    def what(self) -> str:
        return "true or false"

    def from_toml(self, value: object) -> bool:
        """A bool; a number is none."""
        if not isinstance(value, bool):
            raise self.refused(value)
        return value

    def from_text(self, text: str) -> bool:
        """Also yes and no, on and off, 1 and 0."""
        word = text.strip().lower()
        if word not in (*_YES, *_NO):
            raise self.refused(text)
        return word in _YES

    def to_text(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number from `least` to `most`, or one of `choices`."""

    least: int = 0
    most: int = 10**9
    choices: tuple[int, ...] = ()

    @property
    def what(self) -> str:
        if self.choices:
            return f"a whole number, one of {', '.join(map(str, self.choices))}"
        return f"a whole number, at least {self.least} and at most {self.most}"

    def from_toml(self, value: object) -> int:
        """A bool is no number."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(value)
        if not (value in self.choices if self.choices else self.least <= value <= self.most):
            raise self.refused(value)
        return value

    def from_text(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self.refused(text) from None
        return self.from_toml(value)


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number from `least` (which is left out if `above`) to `most`."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False

    @property
    def what(self) -> str:
        least = f"a number {'above' if self.above else 'of at least'} {self.least:g}"
        return f"{least} and at most {self.most:.12g}" if math.isfinite(self.most) else least

    def from_toml(self, value: object) -> float:
        """TOML has integers where a number is meant (`temperature = 1`)."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(value)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"has too many digits; it must be {self.what}") from None
        enough = number > self.least if self.above else number >= self.least
        if not (math.isfinite(number) and enough and number <= self.most):
            raise self.refused(number)
        return number

    def from_text(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.refused(text) from None
        return self.from_toml(value)

    def to_text(self, value: Any) -> str:
        short = f"{value:g}"
        return short if float(short) == value else repr(value)


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    values: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"one of {', '.join(self.values)}"

    def from_toml(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.values:
            raise self.refused(value)
        return value


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Any text; a name is one line that has something in it. `source` names where the app finds what there is."""

    name: bool = False
    source: Literal["", "themes"] = ""

    @property
    def what(self) -> str:
        return "a name in one line, in quotes" if self.name else "a text in quotes"

    def from_toml(self, value: object) -> str:
        if not isinstance(value, str) or (self.name and (not value.strip() or not value.isprintable())):
            raise self.refused(value)
        if any("\ud800" <= mark <= "\udfff" for mark in value):
            # What the shell hands over as bytes that are no text.
            raise ValueError("has bytes that are no UTF-8; give a text without them")
        return value


@dataclass(frozen=True, slots=True)
class FolderList(Kind):
    """Folders; as text one beside the other as in PATH, or one a line."""

    @property
    def what(self) -> str:
        return "a list of texts in quotes"

    def from_toml(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise self.refused(value)
        return tuple(value)

    def from_text(self, text: str) -> tuple[str, ...]:
        """Parted by `:` (`;` on Windows) or by lines."""
        parts = [part for line in text.splitlines() for part in line.split(os.pathsep)]
        return tuple(part.strip() for part in parts if part.strip())

    def to_text(self, value: Any) -> str:
        return "\n".join(value)

    def to_toml(self, value: Any) -> TomlValue:
        return list(value)


@dataclass(frozen=True, slots=True)
class Numbers(Kind):
    """Numbers that `each` takes, one for each card; as text with commas between them."""

    each: Whole | Number

    @property
    def what(self) -> str:
        return f"a list of numbers, each {self.each.what}"

    def from_toml(self, value: object) -> tuple[int | float, ...]:
        """One number alone is a list, too."""
        several = value if isinstance(value, list | tuple) else [value]
        try:
            return tuple(self.each.from_toml(one) for one in several)
        except ValueError:
            raise self.refused(value) from None

    def from_text(self, text: str) -> tuple[int | float, ...]:
        try:
            return tuple(self.each.from_text(part) for part in text.split(","))
        except ValueError:
            raise self.refused(text) from None

    def to_text(self, value: Any) -> str:
        return ",".join(map(self.each.to_text, value))

    def to_toml(self, value: Any) -> TomlValue:
        return list(value)


@dataclass(frozen=True, slots=True)
class Keys(Kind):
    """Keys by action. Which actions and keys there are is known above (`exlchat.app.keys.keymap`)."""

    @property
    def what(self) -> str:
        return 'a table of actions with a key or a list of keys each, such as retry = "ctrl+t"'

    def from_toml(self, value: object) -> KeyTable:
        if isinstance(value, tuple):
            return value
        if not isinstance(value, dict):
            raise self.refused(value)
        return tuple((str(action), self._keys(keys)) for action, keys in value.items())

    def _keys(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return split_keys(value)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise self.refused(value)

    def from_text(self, text: str) -> KeyTable:
        """`retry=ctrl+t new=f3,ctrl+n`."""
        pairs = [word.partition("=") for word in text.split()]
        if not all(action and sign and keys for action, sign, keys in pairs):
            raise ValueError(f"is {_shown(text)}; it must be like retry=ctrl+t new=f3,ctrl+n")
        return tuple((action, split_keys(keys)) for action, _, keys in pairs)

    def to_text(self, value: Any) -> str:
        return " ".join(f"{action}={','.join(keys)}" for action, keys in value)

    def to_toml(self, value: Any) -> TomlValue:
        """A key alone stands without a list."""
        return {action: keys[0] if len(keys) == 1 else list(keys) for action, keys in value}


@dataclass(frozen=True, slots=True)
class Controls(Kind):
    @property
    def what(self) -> str:
        return "a table of sampling controls, such as xtc_probability = 0.5 (docs/sampling.md lists them)"

    def from_toml(self, value: object) -> SamplingTable:
        if isinstance(value, tuple):
            return value
        if not isinstance(value, dict):
            raise self.refused(value)
        return tuple((name, _control(name, one)) for name, one in value.items())

    def from_text(self, text: str) -> SamplingTable:
        """`xtc_probability = 0.5, dry_breakers = ["\\n"]`: TOML, with commas between the values."""
        text = text.strip()
        inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
        try:
            found = tomllib.loads(f"table = {{{inner}}}")
        except (ValueError, RecursionError):
            found = {}
        if found.keys() != {"table"}:
            raise self.refused(text)
        return self.from_toml(found["table"])

    def to_text(self, value: Any) -> str:
        return ", ".join(f"{name} = {toml_text(to_plain(name, one))}" for name, one in value)

    def to_toml(self, value: Any) -> TomlValue:
        return {name: to_plain(name, one) for name, one in value}


def split_keys(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write numbers of thousands of digits.
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _control(name: str, value: object) -> Any:
    """Raises `ValueError` that goes on behind the name of the setting."""
    if name in OWN_KEYS:
        raise ValueError(f"has {name}, which is a key of its own; write it above the tables")
    try:
        require_control(name)
        return from_plain(name, value)
    except ValueError as error:
        raise ValueError(f"cannot be taken: {error}") from None


def toml_text(value: TomlValue) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's, but for one character that JSON leaves alone.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{toml_key(key)} = {toml_text(one)}' for key, one in value.items())}}}"
    return str(value)


def toml_key(key: str) -> str:
    """Bare where TOML allows that."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else toml_text(key)
