"""Reading and checking themes/*.toml, shipped and the user's own.

A theme file has a name, `dark`, a palette `[colors]` and four tables that say what the colours are for. A value is
`"#rrggbb"` or the name of a palette entry. A user's file may leave entries out: they are those of the shipped theme of
the same brightness, looked up in the user's palette.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exlchat.ui.themes import DEFAULT_THEME, PALETTE_NEEDED, USES, ThemeFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class ThemeError(Exception):
    """A theme file that cannot be used: one line with file, key and what is wrong."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A file as written: known keys only, names of colours not yet looked up."""

    path: Path
    name: str
    dark: bool
    sections: Mapping[str, Mapping[str, str]]

    def over(self, base: _Table) -> _Table:
        """This file with what it leaves out taken from `base`."""
        merged = {section: {**base.sections[section], **entries} for section, entries in self.sections.items()}
        return _Table(self.path, self.name, self.dark, merged)

    def resolve(self) -> ThemeFile:
        """Look the colours up.

        Raises:
            ThemeError: an entry is missing or names no colour.
        """
        palette = self.sections["colors"]
        colors = {key: self._hex("colors", key) for key in palette}
        for key in PALETTE_NEEDED:
            if key not in colors:
                raise ThemeError(f"{self.path}: colors.{key}: missing")
        for section, keys in USES.items():
            for key in keys:
                colors[f"{section}.{key}"] = self._hex(section, key)
        return ThemeFile(self.name, self.dark, colors)

    def _hex(self, section: str, key: str) -> str:
        value = self.sections[section].get(key)
        if value is None:
            raise ThemeError(f"{self.path}: {section}.{key}: missing")
        palette = self.sections["colors"]
        color = palette.get(value, value) if section != "colors" else value
        if _HEX.fullmatch(color):
            return color.lower()
        if section == "colors":
            raise ThemeError(f'{self.path}: colors.{key}: {value!r} is not a colour like "#1a2b3c"')
        hint = _nearest(value, palette)
        raise ThemeError(f'{self.path}: {section}.{key}: {value!r} is neither "#rrggbb" nor a name in [colors]{hint}')


def load_themes(shipped_folder: Path, user_folder: Path) -> tuple[dict[str, ThemeFile], list[str]]:
    """All themes by name, shipped ones first, and one line for each user file that cannot be used.

    A user's theme replaces a shipped one of the same name.

    Raises:
        ThemeError: a shipped file is broken or missing.
    """
    shipped = [_read(path) for path in sorted(shipped_folder.glob("*.toml"))]
    themes = {table.name: table.resolve() for table in shipped}
    if DEFAULT_THEME not in themes:
        raise ThemeError(f"{shipped_folder}: {DEFAULT_THEME}.toml is missing; install exlchat again")
    bases = {table.dark: table for table in reversed(shipped)}
    errors: list[str] = []
    for path in sorted(user_folder.glob("*.toml")):
        try:
            table = _read(path)
            theme = (table.over(bases[table.dark]) if table.dark in bases else table).resolve()
        except ThemeError as error:
            errors.append(str(error))
        else:
            themes[theme.name] = theme
    return themes, errors


def _read(path: Path) -> _Table:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThemeError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ThemeError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ThemeError(f"{path}: not valid TOML: {error}") from error
    _check_keys(path, table, ("name", "dark", "colors", *USES), "")
    name = table.get("name", path.stem)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ThemeError(f"{path}: name: {name!r} must be lower-case letters, digits and hyphens")
    dark = table.get("dark", True)
    if not isinstance(dark, bool):
        raise ThemeError(f"{path}: dark: {dark!r} must be true or false")
    sections = {section: _section(path, table.get(section, {}), section) for section in ("colors", *USES)}
    return _Table(path, name, dark, sections)


def _section(path: Path, entries: Any, section: str) -> dict[str, str]:
    if not isinstance(entries, dict):
        raise ThemeError(f"{path}: {section}: must be a table [{section}]")
    if section in USES:
        _check_keys(path, entries, USES[section], f"{section}.")
    for key, value in entries.items():
        if not isinstance(value, str):
            raise ThemeError(f"{path}: {section}.{key}: {value!r} must be text in quotes")
    return entries


def _check_keys(path: Path, entries: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    known = tuple(known)
    for key in entries:
        if key not in known:
            raise ThemeError(f"{path}: {prefix}{key}: unknown key{_nearest(key, known)}")


def _nearest(value: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(value, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""
