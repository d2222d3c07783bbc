"""What a format of another program becomes: a file of the user's own, and what of it could not be followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tomlkit

from exlchat.chat.prompt.formats.table import TableError, from_table
from exlchat.untrusted.text import one_line, storable


class PresetError(Exception):
    """What is wrong with a preset, as the end of a line that names its file."""


@dataclass(frozen=True, slots=True)
class ImportedFormat:
    """A format of another program.

    Args:
        kind: whose, for the user to read.
        ending: of the file that it becomes.
        text: of that file.
        name: what it calls itself; "" where it does not say.
        left_out: what of it our formats do not have, one thing each.
        notes: what of it is followed in a way of its own, a line each.
    """

    kind: Literal["SillyTavern", "text-generation-webui"]
    ending: Literal[".jinja", ".toml"]
    text: str
    name: str = ""
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def text_at(content: Mapping[str, Any], key: str) -> str:
    """A text that a file can hold, "" for none.

    Raises:
        PresetError: it is something else.
    """
    value = content.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise PresetError(f"{key} must be a text, not {one_line(repr(value), 40)}; mend it or take another file")
    return storable(value)


def as_toml(table: Mapping[str, Any]) -> str:
    """A table as it is written, checked by the reader of our own.

    Raises:
        PresetError: it makes no format.
    """
    text = tomlkit.dumps({key: value for key, value in table.items() if not isinstance(value, dict)})
    text += "".join("\n" + tomlkit.dumps({key: value}) for key, value in table.items() if isinstance(value, dict))
    try:
        from_table(text)
    except TableError as error:
        raise PresetError(f"makes no format: {error}") from None
    return text
