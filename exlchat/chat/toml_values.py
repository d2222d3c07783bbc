"""TOML files of one table: checked key by key, written so that people like to read them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from exlchat.untrusted.text import did_you_mean, one_line

TEXT = "a text in quotes"
TEXTS = "a list of texts in quotes"
NUMBER = "a number"
WHOLE = "a whole number"
SWITCH = "true or false"
TABLE = "a table"
TABLES = "a list of tables"
TOKENS = "a list of tokens, each a text in quotes or an id"
BIASES = "a table of tokens in quotes with a number each, or a list of [token, number]"

_PLAIN: dict[str, type] = {TEXT: str, SWITCH: bool, TABLE: dict}


class TomlValueError(Exception):
    """What is wrong with a file or a value: the end of a line that names the file."""


def parsed(text: str) -> dict[str, Any]:
    """The table that `text` writes.

    Raises:
        TomlValueError: it is not TOML, or nested too deep.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlValueError(f"not TOML: {one_line(str(error))}; mend that line") from None
    except (RecursionError, ValueError):
        raise TomlValueError("not TOML that can be read: nested too deep or a number too long") from None


def checked(table: Mapping[str, Any], kinds: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """A copy of `table`, lists as tuples.

    Args:
        table: as read.
        kinds: key -> what its value must be, one of the constants above.
        prefix: what stands before a key in errors.

    Raises:
        TomlValueError: the first key that is unknown, with the nearest one, or whose value is of another kind.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in kinds:
            hint = did_you_mean(key, kinds, "the keys are")
            raise TomlValueError(f"{prefix}unknown key {one_line(key, 60)!r}; {hint}")
        if not _fits(value, kinds[key]):
            raise TomlValueError(f"{prefix}{key} is {shown_value(value)}; it must be {kinds[key]}")
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


def shown_value(value: object) -> str:
    try:
        return one_line(repr(value), 60)
    except ValueError:
        # Python does not write out whole numbers of more than 4300 digits.
        return "a number of thousands of digits"


def _fits(value: object, kind: str) -> bool:
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind])
    if kind in (WHOLE, NUMBER):
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
        return number and (kind == NUMBER or isinstance(value, int))
    if kind == BIASES and isinstance(value, dict):
        return all(_fits(one, NUMBER) for one in value.values())
    return isinstance(value, list | tuple) and all(_is_entry(one, kind) for one in value)


def _is_entry(value: object, kind: str) -> bool:
    match kind:
        case "a list of tables":
            return isinstance(value, dict)
        case "a list of tokens, each a text in quotes or an id":
            return isinstance(value, int | str) and not isinstance(value, bool)
        case "a list of texts in quotes":
            return isinstance(value, str)
    return isinstance(value, list | tuple)


def written(table: Mapping[str, Any]) -> str:
    """A table as the text of a file; reading it gives the same table."""
    import tomlkit

    document = tomlkit.document()
    for key, value in sorted(table.items(), key=lambda item: _is_table(item[1])):
        document.add(key, _item(value))
    return tomlkit.dumps(document)


def _item(value: Any) -> Any:
    import tomlkit

    if isinstance(value, str):
        return _text_item(value)
    if isinstance(value, Mapping):
        table = tomlkit.table()
        # A plain key behind a table of the table would belong to that one.
        for key, one in sorted(value.items(), key=lambda item: _is_table(item[1])):
            table.add(key, _item(one))
        return table
    if _is_table(value):
        tables = tomlkit.aot()
        for one in value:
            tables.append(_item(one))
        return tables
    return tomlkit.item(value)


def _is_table(value: object) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _text_item(text: str) -> Any:
    import tomlkit
    from tomlkit.items import String, StringType, Trivia

    readable = all(character in "\n\t" or character.isprintable() for character in text)
    if "\n" in text and readable and "\\" not in text and '"' not in text[-1:] and '""' not in text:
        # TOML drops the newline right behind the opening quotes, so that the text begins on a line of its own.
        return String(StringType.MLB, text, f"\n{text}", Trivia())
    # A literal one is read many times faster.
    return tomlkit.string(text, literal=text.isascii() and text.isprintable() and "'" not in text and '"' in text)
