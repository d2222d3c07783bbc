"""What the commands of `exlchat themes` do. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exlchat import paths
from exlchat.cli.themes.making import find, new_theme
from exlchat.config.themes import ThemeError, ThemeShelf, read_shelf
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, colour_console, print_json, print_lines, print_segments

if TYPE_CHECKING:
    from exlchat.cli.themes.preview import Line
    from exlchat.config.themes import ThemeFile

_WIDEST: Final = 84
"""Cells of a preview; the address in it needs most of them."""


def run_themes(typed: argparse.Namespace) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` in one line."""
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
    path = find(name, shelf)
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
    return print_lines([str(paths.folders().themes if name is None else find(name, shelf))])


def _new(shelf: ThemeShelf, name: str, base: str | None, lines: ErrorLines) -> ExitCode:
    target = new_theme(name, base, shelf)
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
