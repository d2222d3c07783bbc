"""What the commands of `exlchat themes` do. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.segment import Segment, Segments

from exlchat import paths
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.headless_output import ErrorLines, print_report, write_report
from exlchat.ui.theme_files import ThemeError, ThemeShelf, read_shelf
from exlchat.ui.themes_cli.making import find, new_theme

if TYPE_CHECKING:
    from exlchat.ui.themes import ThemeFile
    from exlchat.ui.themes_cli.preview import Line

_WIDEST: Final = 84
"""Cells of a preview; the address in it needs most of them."""


def run_themes(typed: argparse.Namespace) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` in one line."""
    lines = ErrorLines(sys.stderr)
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
        return _print_json([_summary(theme, shelf.paths[name]) for name, theme in shelf.themes.items()])
    console = _colours()
    if console is None:
        width = max(map(len, shelf.themes))
        rows = (f"{name:<{width}}  {theme.description}".rstrip() for name, theme in shelf.themes.items())
        return print_report("".join(f"{row}\n" for row in rows))
    from exlchat.ui.themes_cli.preview import headline, preview

    width = min(console.width, _WIDEST)
    shown: list[Line] = []
    for theme in shelf.themes.values():
        shown += [headline(theme, width), *preview(theme, width), []]
    return _print_lines(console, shown)


def _show(shelf: ThemeShelf, name: str, *, as_json: bool) -> ExitCode:
    path = find(name, shelf)
    theme = shelf.themes[name]
    if as_json:
        return _print_json({**_summary(theme, path), "colors": dict(theme.colors), "styles": dict(theme.styles)})
    console = _colours()
    if console is None:
        entries = [*theme.colors.items(), *((f"styles.{key}", words) for key, words in theme.styles.items())]
        rows = [f"{name} ({path})", theme.description, *(f"{key:<24} {value}" for key, value in entries)]
        return print_report("".join(f"{row}\n" for row in rows if row))
    from exlchat.ui.themes_cli.preview import headline, preview, swatch

    width = min(console.width, _WIDEST)
    entries_shown = [swatch(theme, key) for key in theme.colors]
    return _print_lines(console, [headline(theme, width), *preview(theme, width, long=True), [], *entries_shown])


def _path(shelf: ThemeShelf, name: str | None) -> ExitCode:
    return print_report(f"{paths.folders().themes if name is None else find(name, shelf)}\n")


def _new(shelf: ThemeShelf, name: str, base: str | None, lines: ErrorLines) -> ExitCode:
    target = new_theme(name, base, shelf)
    if name in shelf.themes:
        lines.say(f"{name} takes the place of another theme of that name")
    return print_report(f"{target}\n")


def _summary(theme: ThemeFile, path: Path) -> dict[str, Any]:
    return {
        "name": theme.name,
        "description": theme.description,
        "dark": theme.dark,
        "terminal_colors": theme.ansi,
        "path": str(path),
        "shipped": path.parent == paths.shipped_themes(),
    }


def _colours() -> Console | None:
    """Standard output if it is a terminal that shows colours, and they are wanted there (NO_COLOR)."""
    console = Console(file=sys.stdout)
    wanted = sys.stdout.isatty() and console.color_system is not None and not console.no_color
    return console if wanted else None


def _print_lines(console: Console, lines: Iterable[Line]) -> ExitCode:
    with console.capture() as drawn:
        for line in lines:
            console.print(Segments([*line, Segment("\n")]), end="", soft_wrap=True)
    return write_report(drawn.get())


def _print_json(value: Any) -> ExitCode:
    return print_report(json.dumps(value, indent=1) + "\n")
