"""The settings of the user: `settings.toml` and the environment read, and single keys of the file written.

Which settings there are is declared in `config/schema.py`, what wins in `config/layers.py`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.config.kinds import toml_key, toml_text
from exlchat.config.layers import Layer, Resolved, resolve
from exlchat.config.schema import DRAWN, EITHER, SETTINGS, Setting, Settings
from exlchat.untrusted import files
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from exlchat.config.kinds import TomlValue

TABLES = ("keys", "sampling")
"""Settings that are tables, of which single rows can be written."""
VARIABLES = "EXLCHAT_"
"""What the environment variables of the settings begin with."""
_LARGEST_FILE = 1_000_000
"""Bytes."""
_MOST_LINES = 2000
"""Of a longer file no line is looked for."""


class SettingsError(Exception):
    """A setting that cannot be used: one line that names the file or variable, the key and how to mend it."""


@dataclass(frozen=True)
class Reading:
    """What was found. What cannot be used is as if it were not there, and named in one line each; of a file with a
    mistake nothing is used.
    """

    file: Layer = field(default_factory=lambda: Layer("file"))
    environment: Layer = field(default_factory=lambda: Layer("environment"))
    file_problems: tuple[str, ...] = ()
    environment_problems: tuple[str, ...] = ()

    @property
    def held(self) -> Resolved:
        """The environment over the file."""
        return resolve(self.environment, self.file)

    @cached_property
    def settings(self) -> Settings:
        """What holds of them.

        Raises:
            ValueError: the two contradict each other, which `read_settings` has ruled out.
        """
        held = self.held
        return Settings(**{key: held.value(key) for key in SETTINGS})

    def drawing_as(self, other: Reading) -> Reading:
        """With how answers are drawn as `other` says."""
        return replace(
            self,
            file=_drawing_as(self.file, other.file),
            environment=_drawing_as(self.environment, other.environment),
        )

    def require_sound(self) -> Reading:
        """Itself. Raises `SettingsError` for the first problem."""
        for problem in (*self.file_problems, *self.environment_problems):
            raise SettingsError(problem)
        return self


def _drawing_as(layer: Layer, other: Layer) -> Layer:
    kept = {key: value for key, value in layer.values.items() if key not in DRAWN}
    drawn = {key: value for key, value in other.values.items() if key in DRAWN}
    return replace(layer, values=kept | drawn)


def read_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Reading:
    """The settings in `path` (by default the user's own file), under those in `environ` (by default the process's).

    Never raises: what is wrong is named in the result.
    """
    path = path or paths.folders().settings_file
    file: dict[str, Any] = {}
    try:
        text = read_text(path)
        file_problems = tuple(_problems(path, text))
        file = {} if file_problems else _values(tomllib.loads(text))
    except SettingsError as error:
        file_problems = (str(error),)
    values, problems = _environment(os.environ if environ is None else environ)
    reading = Reading(Layer("file", file), Layer("environment", values), file_problems, tuple(problems))
    try:
        _ = reading.settings
    except ValueError as error:
        # What is there alone has been checked: how the two want answers to be drawn does not go together.
        problems.append(f"{error} (environment variables and settings.toml)")
        left = {key: value for key, value in values.items() if key not in DRAWN}
        return replace(reading, environment=Layer("environment", left), environment_problems=tuple(problems))
    return reading


def load_settings(path: Path | None = None) -> Settings:
    """The settings in `path` (by default the user's own file), under the environment; defaults where there is nothing.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or has an unknown key or an impossible value; or a variable
            of the environment has one.
    """
    return read_settings(path).require_sound().settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {paths.HOME_VARIABLE, *(setting.variable for setting in SETTINGS.values())}
    lines = []
    for name in sorted(environ):
        if name.startswith(VARIABLES) and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "exlchat config show lists all"
            lines.append(f"the environment variable {name} is no setting; {hint}")
    return lines


def named(key: str) -> Setting:
    """The setting of a key.

    Raises:
        SettingsError: there is none.
    """
    if key not in SETTINGS:
        raise SettingsError(_unknown(key))
    return SETTINGS[key]


def save_setting(key: str, value: TomlValue, path: Path | None = None) -> Settings:
    """Write one key into the file, keeping comments and order; `None` takes the key out. Returns what the file says.

    `keys.ACTION` and `sampling.CONTROL` are rows of the tables of these names. An unknown key can be taken out, too,
    if it is there.

    Raises:
        SettingsError: unknown key, impossible value, or a file that cannot be read or written; the file is unchanged.
    """
    path = path or paths.folders().settings_file
    text = read_text(path)
    _table(path, text)
    from tomlkit.exceptions import TOMLKitError

    try:
        new = _without(path, text, key) if value is None else _with(path, text, key, value)
    except TOMLKitError as error:
        raise SettingsError(f"{path}: {key} cannot be written into it ({error}); edit the file itself") from None
    for problem in _problems(path, new) if value is not None else ():
        raise SettingsError(problem)
    try:
        paths.atomic_write(path, new)
    except UnicodeEncodeError:
        raise SettingsError(f"{key} has bytes that are no UTF-8; give a text without them") from None
    except paths.FolderError as error:
        raise SettingsError(str(error)) from None
    return read_settings(path, {}).settings


def read_text(path: Path) -> str:
    """What stands in the file; nothing if there is none.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        return files.read_text(path, largest=_LARGEST_FILE, kind="settings file")
    except NoSuchFileError:
        return ""
    except UntrustedFileError as error:
        raise SettingsError(str(error)) from None


def file_problems(path: Path) -> list[str]:
    """All that is wrong with a file, in a line each, with the lines of the file where they are known."""
    try:
        return list(_problems(path, read_text(path)))
    except SettingsError as error:
        return [str(error)]


def _with(path: Path, text: str, key: str, value: TomlValue) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    table, _, row = key.partition(".")
    if row and table in TABLES:
        if not isinstance(document.get(table, {}), dict):
            raise SettingsError(f"{path}: {table} is no table; exlchat config unset {table} takes it out")
        document.setdefault(table, tomlkit.table())[row] = value
    elif isinstance(value, dict) and isinstance(document.get(key), dict):
        # Row by row, so that comments in the table stay.
        rows = document[key]
        for row in [one for one in rows if one not in value]:
            rows.pop(row)
        rows.update(value)
    elif key not in document and (where := _below_its_comment(text, key, f"{toml_key(key)} = {toml_text(value)}")):
        if _parsed(where) == {**document.unwrap(), key: value}:
            return where
        document[key] = value
    else:
        document[key] = value
    return tomlkit.dumps(document)


def _without(path: Path, text: str, key: str) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    table, _, row = key.partition(".")
    if key not in SETTINGS and key not in document and not (row and table in TABLES):
        raise SettingsError(f"{path}: {_unknown(key)}")
    if row and table in TABLES:
        rows = document.get(table)
        if isinstance(rows, dict):
            rows.pop(row, None)
    else:
        document.pop(key, None)
    return tomlkit.dumps(document)


def _table(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "it is nested too deep"
        raise SettingsError(f"{path}: not TOML: {reason}; mend that line, or delete the file for defaults") from None


def _parsed(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def _problems(path: Path, text: str) -> Iterator[str]:
    """Raises `SettingsError` for what is no TOML."""
    wrong = False
    table = _table(path, text)
    for key, value in table.items():
        try:
            named(key).from_toml(value)
        except (SettingsError, ValueError) as error:
            wrong = True
            yield f"{path}: {error}{_at(_line_of(text, key))}"
    if not wrong:
        try:
            Settings(**_values(table))
        except ValueError as error:
            concerned = EITHER if all(key in table for key in EITHER) else DRAWN
            yield f"{path}: {error}{_at(max(_line_of(text, key) or 0 for key in concerned))}"


def _at(line: int | None) -> str:
    return f" (line {line})" if line else ""


def _values(table: Mapping[str, object]) -> dict[str, Any]:
    return {key: SETTINGS[key].from_toml(value) for key, value in table.items()}


def _environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Values by key, and a line for each variable that cannot be used. An empty variable is none."""
    values: dict[str, Any] = {}
    problems = []
    for setting in SETTINGS.values():
        if text := environ.get(setting.variable):
            try:
                values[setting.key] = setting.from_text(text, setting.variable)
            except ValueError as error:
                problems.append(f"{error} (environment variable)")
    if all(values.get(key) is not None for key in EITHER):
        names = " and ".join(SETTINGS[key].variable for key in EITHER)
        problems.append(f"{names} are both there; keep one of them (environment variables)")
        values = {key: value for key, value in values.items() if key not in EITHER}
    return values, problems


def _unknown(key: str) -> str:
    nearest = difflib.get_close_matches(key, SETTINGS, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(SETTINGS)}"
    return f"unknown key {key[:60]!r}; {hint}"


def _line_of(text: str, *key: str) -> int | None:
    """The line, from 1, in which `key` (with the key below it, if any) begins; `None` if it is not found.

    TOML is read line by line: the first beginning of the text that is whole and has the key ends with it.
    """
    lines = text.splitlines(keepends=True)
    if len(lines) > _MOST_LINES:
        return None
    first = 0
    for end in range(1, len(lines) + 1):
        try:
            table = tomllib.loads("".join(lines[:end]))
        except (ValueError, RecursionError):
            continue
        if _has(table, key):
            statement = range(first, end)
            return next((at + 1 for at in statement if lines[at].strip() and lines[at].lstrip()[0] != "#"), end)
        first = end
    return None


def _has(table: Any, key: tuple[str, ...]) -> bool:
    for part in key:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _below_its_comment(text: str, key: str, line: str) -> str | None:
    """`text` with `line` below the comment that has the key's default (`# key = ...`), if there is one."""
    lines = text.splitlines(keepends=True)
    comment = re.compile(rf"#\s*{re.escape(key)}\s*=")
    for at, one in enumerate(lines):
        if comment.match(one):
            ending = "" if one.endswith("\n") else "\n"
            return "".join([*lines[: at + 1], ending, f"{line}\n", *lines[at + 1 :]])
    return None
