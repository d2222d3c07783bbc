"""What the commands of `exlchat config` do. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.keys.keymap import BINDABLE, keymap, with_keys
from exlchat.chat.presets.control_values import from_text, require_control, to_plain
from exlchat.cli.config.telling import as_json, in_groups, new_file, told
from exlchat.config.files import file_problems, named, read_settings, save_setting, unknown_variables
from exlchat.config.schema import GROUPS, SETTINGS
from exlchat.ui.terminal.editor import EditorError, edit
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from exlchat.config.files import Reading
    from exlchat.config.kinds import TomlValue

_TABLE = "keys."
_SAMPLED = "sampling."


def run_config(typed: argparse.Namespace) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` and `SettingsError`."""
    lines = ErrorLines()
    commands: dict[str, Callable[[], ExitCode]] = {
        "show": lambda: _show(typed.key, lines, as_list=typed.json),
        "edit": lambda: _edit(lines),
        "path": lambda: print_lines([str(paths.folders().settings_file)]),
        "set": lambda: _set(typed.key, typed.value, lines),
        "unset": lambda: _unset(typed.key, lines),
    }
    try:
        return commands[typed.command]()
    except (ValueError, EditorError) as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _show(key: str | None, lines: ErrorLines, *, as_list: bool) -> ExitCode:
    """All that holds, also when something is wrong with the file; the exit code says so then."""
    shown = [named(key)] if key else list(SETTINGS.values())
    reading = read_settings()
    problems = [*reading.file_problems, *reading.environment_problems]
    for line in (*problems, *unknown_variables(os.environ), *keymap(reading.settings.keys).problems):
        lines.say(line)
    if as_list:
        found = [as_json(one, reading) for one in shown]
        code = print_json(found[0] if key else found)
    else:
        code = print_lines(told(shown[0], reading) if key else _all(reading))
    return ExitCode.ERROR if problems and code is ExitCode.OK else code


def _all(reading: Reading) -> list[str]:
    lines: list[str] = []
    for group, settings in in_groups():
        lines += [*([""] if lines else []), f"# {group}: {GROUPS[group]}"]
        for one in settings:
            value = one_line(one.shown(getattr(reading.settings, one.key)), 200)
            source = reading.held.source(one.key)
            lines.append(f"{one.key} = {value}" + ("" if source == "default" else f"  [{source}]"))
            lines.append(f"    {one.help}")
    return lines


def _edit(lines: ErrorLines) -> ExitCode:
    file = paths.folders().settings_file
    if not file.exists():
        paths.atomic_write(file, new_file())
    left = edit(file)
    problems = [*file_problems(file)]
    reading = read_settings(environ={})
    for line in (left, *problems, *keymap(reading.settings.keys).problems):
        if line:
            lines.say(line)
    if problems:
        lines.say("your edit is kept; until it is mended the app takes the defaults: exlchat config edit")
    return ExitCode.ERROR if problems or left else ExitCode.OK


def _set(key: str, text: str, lines: ErrorLines) -> ExitCode:
    value: TomlValue
    if key.startswith(_TABLE):
        action = key.removeprefix(_TABLE)
        names = SETTINGS["keys"].from_text(f"{action}={text.replace(' ', '')}")[0][1]
        keys = with_keys(read_settings(environ={}).settings.keys, action, names)
        value = keys[0] if len(keys) == 1 else list(keys)
    elif key.startswith(_SAMPLED):
        control = key.removeprefix(_SAMPLED)
        require_control(control)
        value = to_plain(control, from_text(control, text))
    else:
        setting = named(key)
        new = setting.from_text(text)
        value = None if new is None else setting.kind.to_toml(new)
    save_setting(key, value)
    return _holds(key, lines)


def _unset(key: str, lines: ErrorLines) -> ExitCode:
    save_setting(key, None)
    return _holds(key, lines) if key in SETTINGS or key.startswith((_TABLE, _SAMPLED)) else ExitCode.OK


def _holds(key: str, lines: ErrorLines) -> ExitCode:
    """Say what holds now; that the environment wins is said beside it."""
    reading = read_settings()
    if key.startswith(_TABLE):
        action = key.removeprefix(_TABLE)
        keys = keymap(reading.settings.keys)
        code = print_lines([f"{key} = {', '.join(keys.keys(action))}"]) if action in BINDABLE else ExitCode.OK
        setting = SETTINGS["keys"]
    else:
        setting = SETTINGS[key.partition(".")[0]]
        key = setting.key
        code = print_lines([f"{key} = {setting.shown(getattr(reading.settings, key))}"])
    if reading.held.source(setting.key) == "environment":
        lines.say(f"{setting.variable} is set in the environment and beats the file")
    return code
