"""`exlchat config`: the settings. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import os
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.app.commands.actions import ACTIONS
from exlchat.app.keys.keymap import BINDABLE, keymap, with_keys
from exlchat.chat.presets.control_values import from_text, require_control, to_plain
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.config.files import file_problems, named, read_settings, save_setting, unknown_variables
from exlchat.config.kinds import toml_text
from exlchat.config.schema import GROUPS, SETTINGS, grouped
from exlchat.ui.terminal.editor import EditorError, edit
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from exlchat.config.files import Reading
    from exlchat.config.kinds import TomlValue
    from exlchat.config.schema import Setting

_ABOUT = """Settings: what they are, where each value comes from, and how to change them.
The command line beats the environment (EXLCHAT_THEME, EXLCHAT_TEMPERATURE, ...),
and that beats the file settings.toml."""
_EPILOG = """examples:
  exlchat config show
  exlchat config show temperature
  exlchat config set theme exlchat-light
  exlchat config set keys.retry ctrl+t
  exlchat config set sampling.xtc_probability 0.5
  exlchat config unset theme
  EDITOR=nano exlchat config edit

exit codes:
  0 ok   1 error, or the edited file is wrong   2 usage"""
_TABLE = "keys."
_SAMPLED = "sampling."
_WIDTH = 100


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat config", _ABOUT, _EPILOG, "exlchat config COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat config")
    shows = [
        command("show", "[KEY]", "show the settings: value, where it comes from, what it means"),
        command("list", "[KEY]", "the same as show"),
    ]
    for one in shows:
        one.add_argument("key", metavar="KEY", nargs="?", help="this setting alone")
        json_option(one)
    edit = command("edit", "", "open the file in $VISUAL or $EDITOR, and check it afterwards")
    where = command("path", "", "say where the file lies")
    change = command("set", "KEY VALUE", "write a value into the file")
    _key(change)
    change.add_argument("value", metavar="VALUE", help="the value; none takes the key out where no value is possible")
    remove = command("unset", "KEY", "take a key out of the file, so that its default holds")
    _key(remove)
    for one in (*shows, edit, where, change, remove, parser):
        about_group(one)
    return parser


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="a setting, keys.ACTION, or sampling.CONTROL")


def run(arguments: Sequence[str]) -> ExitCode:
    """Carries out the command that was typed. Raises `FolderError` and `SettingsError`, one line."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    show = partial(_show, lines)
    commands: dict[str, Callable[[], ExitCode]] = {
        "show": lambda: show(typed.key, as_list=typed.json),
        "list": lambda: show(typed.key, as_list=typed.json),
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


def _show(lines: ErrorLines, key: str | None, *, as_list: bool) -> ExitCode:
    """All that holds, also when something is wrong with the file; the exit code says so then."""
    shown = [named(key)] if key else list(SETTINGS.values())
    reading = read_settings()
    problems = [*reading.file_problems, *reading.environment_problems]
    for line in (*problems, *unknown_variables(os.environ), *keymap(reading.settings.keys).problems):
        lines.say(line)
    if as_list:
        found = [_as_json(one, reading) for one in shown]
        code = print_json(found[0] if key else found)
    else:
        code = print_lines(_told(shown[0], reading) if key else _all(reading))
    return ExitCode.ERROR if problems and code is ExitCode.OK else code


def _all(reading: Reading) -> list[str]:
    lines: list[str] = []
    for group, settings in grouped():
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


def _told(setting: Setting, reading: Reading) -> list[str]:
    value = getattr(reading.settings, setting.key)
    source = reading.held.source(setting.key)
    from_where = f"environment, {setting.variable}" if source == "environment" else source
    beaten = ", ".join((*setting.options, setting.variable))
    lines = [
        f"{setting.key} = {setting.shown(value)}  [{from_where}]",
        f"    {setting.help} It must be {setting.kind.what}.",
        f"    Takes effect: {setting.when}. Beaten by: {beaten}.",
    ]
    if source == "environment" and setting.key in reading.file.values:
        lines.append(f"    The file says {setting.shown(reading.file.values[setting.key])}.")
    return lines


def _as_json(setting: Setting, reading: Reading) -> dict[str, Any]:
    kind = setting.kind
    value = getattr(reading.settings, setting.key)
    return {
        "key": setting.key,
        "value": None if value is None else kind.to_toml(value),
        "source": reading.held.source(setting.key),
        "default": None if setting.default is None else kind.to_toml(setting.default),
        "group": setting.group,
        "help": setting.help,
        "allowed": kind.what,
        "takes_effect": setting.when,
        "variable": setting.variable,
        "options": list(setting.options),
    }


def new_file() -> str:
    """A file of comments: all settings with their defaults and what they mean."""
    lines = ["# The settings of exlchat. Take the # from a line to change what it says; the values are the defaults,"]
    lines += ["# or examples where there is none. `exlchat config show` says which hold, and what beats them.", ""]
    for group, settings in grouped():
        lines += [f"# {group}: {GROUPS[group]}", ""]
        for setting in settings:
            lines += [*_commented(setting), ""]
    return "\n".join(lines)


def _commented(setting: Setting) -> Iterable[str]:
    example = setting.example
    unset = f" Left out: {setting.unset}." if setting.unset else ""
    about = f"{setting.help}{unset} It must be {setting.kind.what}."
    yield from textwrap.wrap(about, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    if setting.key != "keys":
        shown = example if setting.default in (None, ()) else setting.default
        yield f"# {setting.key} = {setting.shown(shown)}"
        return
    yield "# [keys]"
    for action in ACTIONS:
        if action.keys:
            keys = action.keys[0] if len(action.keys) == 1 else list(action.keys)
            yield f"# {action.id} = {toml_text(keys)}  # {action.title}"
