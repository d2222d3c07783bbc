"""`exlchat themes`: themes as files. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from exlchat import paths
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.config.themes import BASES, ThemeError, ThemeShelf, is_theme_name, read_shelf, theme_text
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, colour_console, print_json, print_lines, print_segments

if TYPE_CHECKING:
    from exlchat.cli.themes.preview import Line
    from exlchat.config.themes import ThemeFile

_ABOUT = """Themes: the colours of the chat, as files. On a terminal with colours each is
shown in its own. Take one with `exlchat --theme NAME`, or with /theme NAME in
the app. Your own lie in the folder that `exlchat themes path` names; the app
shows every change of theirs as soon as it is saved."""
_EPILOG = """examples:
  exlchat themes list
  exlchat themes show moss
  exlchat themes new dusk --from tide
  exlchat --theme dusk

exit codes:
  0 ok   1 error   2 usage"""
_WIDEST: Final = 84
"""Cells of a preview; the address in it needs most of them."""
_NEW = """# A theme of your own. It needs only what is different; the rest is that of {base}.
# Save it, and an exlchat that runs with `/theme {name}` shows it at once.
# A value is a colour "#rrggbb", one of the terminal's such as "ansi_blue", or the name of an entry of [colors].

name = "{name}"
description = "One line for the list"
dark = true

[colors]
{colors}
# [roles]
# user = "amber"
# assistant = "#9ad0c2"

# [text]
# heading = "amber"

# [styles]
# heading = "bold underline"
"""
_BEGINS_WITH = ("background", "surface", "panel", "line", "foreground", "quiet", "selection")


def build_parser() -> argparse.ArgumentParser:
    """The commands and options of `exlchat themes`; without a command it is `list`."""
    parser = Parser("exlchat themes", _ABOUT, _EPILOG, "exlchat themes [COMMAND] [options]")
    parser.set_defaults(command="list", json=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    command = partial(add_command, commands, "exlchat themes")
    listing = command("list", "", "list the themes, each in its own colours")
    json_option(listing)
    show = command("show", "NAME", "show one, and every colour of it")
    show.add_argument("name", metavar="NAME", help="the theme")
    json_option(show)
    where = command("path", "[NAME]", "say where your themes lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the theme")
    new = command("new", "NAME", "write a new theme file to fill in")
    new.add_argument("name", metavar="NAME", help="its name: lower-case letters, digits and hyphens")
    new.add_argument("--from", dest="base", metavar="NAME", help="begin with a copy of this theme")
    for one in (listing, show, where, new, parser):
        about_group(one)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` in one line."""
    typed = build_parser().parse_args(arguments)
    lines = ErrorLines()
    try:
        shelf = read_shelf(paths.shipped_themes(), paths.folders().themes)
        commands: dict[str | None, Callable[[], ExitCode]] = {
            "list": lambda: _list(shelf, lines, as_json=typed.json),
            "show": lambda: _show(shelf, typed.name, as_json=typed.json),
            "path": lambda: _path(shelf, typed.name),
            "new": lambda: _new(shelf, typed.name, typed.base, lines),
        }
        return commands[typed.command or "list"]()
    except ThemeError as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _list(shelf: ThemeShelf, lines: ErrorLines, *, as_json: bool) -> ExitCode:
    for problem in shelf.problems.values():
        lines.say(problem)
    if as_json:
        return print_json([_summary(theme, shelf.paths[name]) for name, theme in shelf.themes.items()])
    console = colour_console()
    if console is None:
        width = max(map(len, shelf.themes))
        return print_lines(f"{name:<{width}}  {theme.description}".rstrip() for name, theme in shelf.themes.items())
    from exlchat.cli.themes.preview import headline, preview

    width = min(console.width, _WIDEST)
    shown: list[Line] = []
    for theme in shelf.themes.values():
        shown += [headline(theme, width), *preview(theme, width), []]
    return print_segments(console, shown)


def _show(shelf: ThemeShelf, name: str, *, as_json: bool) -> ExitCode:
    path = _find(name, shelf)
    theme = shelf.themes[name]
    if as_json:
        return print_json({**_summary(theme, path), "colors": dict(theme.colors), "styles": dict(theme.styles)})
    console = colour_console()
    if console is None:
        entries = [*theme.colors.items(), *((f"styles.{key}", words) for key, words in theme.styles.items())]
        rows = [f"{name} ({path})", theme.description, *(f"{key:<24} {value}" for key, value in entries)]
        return print_lines(row for row in rows if row)
    from exlchat.cli.themes.preview import headline, preview, swatch

    width = min(console.width, _WIDEST)
    entries_shown = [swatch(theme, key) for key in theme.colors]
    return print_segments(console, [headline(theme, width), *preview(theme, width, long=True), [], *entries_shown])


def _path(shelf: ThemeShelf, name: str | None) -> ExitCode:
    return print_lines([str(paths.folders().themes if name is None else _find(name, shelf))])


def _new(shelf: ThemeShelf, name: str, base: str | None, lines: ErrorLines) -> ExitCode:
    target = _new_theme(name, base, shelf)
    if name in shelf.themes:
        lines.say(f"{name} takes the place of another theme of that name")
    return print_lines([str(target)])


def _summary(theme: ThemeFile, path: Path) -> dict[str, Any]:
    return {
        "name": theme.name,
        "description": theme.description,
        "dark": theme.dark,
        "terminal_colors": theme.ansi,
        "path": str(path),
        "shipped": path.parent == paths.shipped_themes(),
    }


def _new_theme(name: str, base: str | None, shelf: ThemeShelf) -> Path:
    """Write the file of a new theme; a copy where `base` names one, with its comments. Returns where it lies.

    Raises:
        ThemeError: the name cannot be one, something is there already, or `base` cannot be used.
        FolderError: nothing can be written there.
    """
    if not is_theme_name(name):
        raise ThemeError(f"{name!r} cannot name a theme: lower-case letters, digits and hyphens, such as my-dusk")
    target = paths.folders().themes / f"{name}.toml"
    if target.exists() or target.is_symlink():
        raise ThemeError(f"{target} is there already; choose another name, or edit it")
    text = _beginning(name, shelf) if base is None else _copy(name, _find(base, shelf))
    paths.atomic_write(target, text)
    return target


def _find(name: str, shelf: ThemeShelf) -> Path:
    """The file of a theme.

    Raises:
        ThemeError: there is none of that name, or its file cannot be used.
    """
    if name in shelf.paths:
        return shelf.paths[name]
    for path, problem in shelf.problems.items():
        if path.stem == name:
            raise ThemeError(problem)
    nearest = difflib.get_close_matches(name, shelf.themes, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(shelf.themes)}"
    raise ThemeError(f"there is no theme {name!r}; {hint}")


def _beginning(name: str, shelf: ThemeShelf) -> str:
    base = BASES[True]
    colors = "".join(f'{key} = "{shelf.themes[base].colors[key]}"\n' for key in _BEGINS_WITH)
    return _NEW.format(name=name, base=base, colors=colors)


def _copy(name: str, file: Path) -> str:
    try:
        document = tomlkit.parse(theme_text(file))
    except TOMLKitError as error:
        raise ThemeError(f"{file}: not valid TOML: {error}") from error
    if "name" in document:
        document["name"] = name
    return tomlkit.dumps(document)
