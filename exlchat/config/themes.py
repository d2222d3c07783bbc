"""What a theme is, and the files of themes, shipped and the user's own. How it is drawn: `exlchat.ui.render.themes`.

A theme file has a name, a description, `dark`, a palette `[colors]` and four tables that say what the colours are for.
A value is `"#rrggbb"`, a colour of the terminal such as `"ansi_blue"`, or the name of a palette entry. A user's file
may leave entries out: they are those of the shipped theme of the same brightness, looked up in the user's palette.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from exlchat.untrusted.files import UntrustedFileError, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DEFAULT_THEME = "exlchat-dark"

BASES = {True: "exlchat-dark", False: "exlchat-light"}
"""By brightness, the theme that gives what a user's file leaves out."""

PALETTE_NEEDED = ("background", "surface", "panel", "line", "foreground", "quiet", "selection", "sun", "glow")
USES = {
    "interface": ("primary", "secondary", "accent", "success", "warning", "error"),
    "roles": ("user", "assistant", "system", "notice"),
    "text": ("heading", "link", "quote", "code", "code-background"),
    "syntax": (
        *("comment", "keyword", "type", "function", "name", "string", "number", "operator", "builtin", "tag"),
        *("inserted", "deleted", "error"),
    ),
}
STYLES = {
    "heading": "bold",
    "link": "underline",
    "quote": "italic",
    "code": "none",
    "comment": "italic",
    "keyword": "none",
    "quiet": "none",
    "selection": "none",
}
"""What may be told apart without colours, and how it is where a theme says nothing."""

TERMINAL_DEFAULT: Final = "ansi_default"
_HUES: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
ANSI_COLORS: Final = (TERMINAL_DEFAULT, *(f"ansi_{hue}" for hue in _HUES), *(f"ansi_bright_{hue}" for hue in _HUES))
"""The sixteen colours of the terminal, which its owner chose, and its own text or background."""
MOST_BYTES: Final = 64 * 1024
"""A theme file has about two thousand; anything far longer is something else."""
MOST_DESCRIPTION: Final = 120

_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_STYLE_WORDS = ("bold", "dim", "italic", "underline", "reverse", "none")
_CODE_STYLE_WORDS = ("bold", "italic", "underline", "none")
"""Code is coloured by Pygments, which has no others."""


def is_ansi(color: str) -> bool:
    return color.startswith("ansi_")


@dataclass(frozen=True, slots=True)
class ThemeFile:
    """One theme, checked.

    `colors` maps `background`, `roles.user`, `syntax.keyword` ... to `#rrggbb` or a name such as `ansi_blue`; `styles`
    maps each key of `STYLES` to words such as `bold underline`.
    """

    name: str
    dark: bool
    colors: Mapping[str, str]
    description: str = ""
    styles: Mapping[str, str] = field(default_factory=STYLES.copy)

    @property
    def ansi(self) -> bool:
        return any(is_ansi(color) for color in self.colors.values())


class ThemeError(Exception):
    """A theme file that cannot be used: one line with file, line, key and what is wrong."""


@dataclass(frozen=True, slots=True)
class ThemeShelf:
    """What two folders hold.

    Attributes:
        themes: by name, shipped ones first; a user's theme stands in the place of a shipped one of the same name.
        paths: the file of each.
        problems: one line for each user file that cannot be used.
    """

    themes: dict[str, ThemeFile]
    paths: dict[str, Path]
    problems: dict[Path, str]


def is_theme_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def load_themes(shipped_folder: Path, user_folder: Path) -> tuple[dict[str, ThemeFile], list[str]]:
    """All themes by name, and one line for each user file that cannot be used; else as `read_shelf`."""
    shelf = read_shelf(shipped_folder, user_folder)
    return shelf.themes, list(shelf.problems.values())


def read_shelf(shipped_folder: Path, user_folder: Path) -> ThemeShelf:
    """Read every theme of both folders.

    Raises:
        ThemeError: a shipped file is broken or missing.
    """
    shipped = {table.name: table for table in map(_read, sorted(shipped_folder.glob("*.toml")))}
    for name in (DEFAULT_THEME, *BASES.values()):
        if name not in shipped:
            raise ThemeError(f"{shipped_folder}: {name}.toml is missing; install exlchat again")
    first = (DEFAULT_THEME, *BASES.values())
    themes = {name: shipped[name].resolve() for name in dict.fromkeys((*first, *shipped))}
    paths = {name: shipped[name].path for name in themes}
    problems: dict[Path, str] = {}
    for path in sorted(user_folder.glob("*.toml")):
        try:
            table = _read(path)
            theme = table.over(shipped[BASES[table.dark]]).resolve()
        except ThemeError as error:
            problems[path] = str(error)
        else:
            themes[theme.name] = theme
            paths[theme.name] = path
    return ThemeShelf(themes, paths, problems)


def theme_text(path: Path) -> str:
    """The text of a theme file.

    Raises:
        ThemeError: it cannot be read, or cannot be one.
    """
    try:
        return read_text(path, largest=MOST_BYTES, kind="theme")
    except UntrustedFileError as error:
        raise ThemeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Table:
    """A file as written: known keys only, names of colours not yet looked up."""

    path: Path
    text: str
    name: str
    description: str
    dark: bool
    sections: Mapping[str, Mapping[str, str]]
    styles: Mapping[str, str]

    def over(self, base: _Table) -> _Table:
        merged = {section: {**base.sections[section], **entries} for section, entries in self.sections.items()}
        styles = {**base.styles, **self.styles}
        return _Table(self.path, self.text, self.name, self.description, self.dark, merged, styles)

    def resolve(self) -> ThemeFile:
        """Look the colours up.

        Raises:
            ThemeError: an entry is missing or names no colour.
        """
        palette = self.sections["colors"]
        colors = {key: self._color("colors", key) for key in palette}
        for key in PALETTE_NEEDED:
            if key not in colors:
                raise ThemeError(f"{self.path}: colors.{key}: missing")
        for section, keys in USES.items():
            for key in keys:
                colors[f"{section}.{key}"] = self._color(section, key)
        return ThemeFile(self.name, self.dark, colors, self.description, {**STYLES, **self.styles})

    def _color(self, section: str, key: str) -> str:
        value = self.sections[section].get(key)
        if value is None:
            raise ThemeError(f"{self.path}: {section}.{key}: missing")
        palette = self.sections["colors"]
        color = palette.get(value, value) if section != "colors" else value
        if _HEX.fullmatch(color):
            return color.lower()
        if color in ANSI_COLORS:
            return color
        place = _place(self.path, self.text, section, key)
        if section == "colors":
            like = 'is not a colour like "#1a2b3c" or "ansi_blue"'
            raise ThemeError(f"{place}: {value!r} {like}{_nearest(value, ANSI_COLORS)}")
        hint = _nearest(value, (*palette, *ANSI_COLORS))
        raise ThemeError(f'{place}: {value!r} is neither "#rrggbb" nor a name in [colors]{hint}')


def _read(path: Path) -> _Table:
    text = theme_text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThemeError(f"{path}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ThemeError(f"{path}: not valid TOML: nested too deeply") from error
    _check_keys(path, text, table, ("name", "description", "dark", "colors", *USES, "styles"), "")
    name = table.get("name", path.stem)
    if not isinstance(name, str) or not is_theme_name(name):
        raise ThemeError(f"{_place(path, text, '', 'name')}: {name!r} must be lower-case letters, digits and hyphens")
    description = table.get("description", "")
    if not isinstance(description, str) or len(description) > MOST_DESCRIPTION or not description.isprintable():
        what = f"must be one line of text in quotes, at most {MOST_DESCRIPTION} characters"
        raise ThemeError(f"{_place(path, text, '', 'description')}: {what}")
    dark = table.get("dark", True)
    if not isinstance(dark, bool):
        raise ThemeError(f"{_place(path, text, '', 'dark')}: {dark!r} must be true or false")
    sections = {section: _section(path, text, table.get(section, {}), section) for section in ("colors", *USES)}
    styles = _section(path, text, table.get("styles", {}), "styles")
    for key, value in styles.items():
        _check_style(path, text, key, value)
    return _Table(path, text, name, description, dark, sections, styles)


def _section(path: Path, text: str, entries: Any, section: str) -> dict[str, str]:
    if not isinstance(entries, dict):
        raise ThemeError(f"{_place(path, text, '', section)}: must be a table [{section}]")
    if section != "colors":
        _check_keys(path, text, entries, STYLES if section == "styles" else USES[section], section)
    for key, value in entries.items():
        if not isinstance(value, str):
            raise ThemeError(f"{_place(path, text, section, key)}: {_shown(value)} must be text in quotes")
    return entries


def _check_style(path: Path, text: str, key: str, value: str) -> None:
    words = value.split()
    known = _CODE_STYLE_WORDS if key in ("comment", "keyword") else _STYLE_WORDS
    if not words or not set(words) <= set(known) or ("none" in words and len(words) > 1):
        what = f"must be none, or some of {', '.join(known[:-1])}"
        raise ThemeError(f"{_place(path, text, 'styles', key)}: {_shown(value)} {what}")


def _check_keys(path: Path, text: str, entries: Mapping[str, Any], known: Iterable[str], section: str) -> None:
    known = tuple(known)
    for key in entries:
        if key not in known:
            raise ThemeError(f"{_place(path, text, section, key)}: unknown key{_nearest(key, known)}")


def _place(path: Path, text: str, section: str, key: str) -> str:
    """File, line and key. The line is left out where the file is written in a way that this simple search misses."""
    dotted = f"{section}.{key}" if section else key
    wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*=""")
    heading = re.compile(rf"\s*\[\s*{re.escape(key)}\s*\]")
    inside = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not section and heading.match(line):
            return f"{path}: line {number}: {dotted}"
        if header := _HEADER.match(line):
            inside = header[1]
        elif inside == section and wanted.match(line):
            return f"{path}: line {number}: {dotted}"
    return f"{path}: {dotted}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _nearest(value: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(value, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""
