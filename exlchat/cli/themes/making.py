"""A new theme file, from nothing or from another theme's."""

from __future__ import annotations

import difflib
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from exlchat import paths
from exlchat.config.themes import BASES, ThemeError, ThemeShelf, is_theme_name, theme_text

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


def new_theme(name: str, base: str | None, shelf: ThemeShelf) -> Path:
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
    text = _beginning(name, shelf) if base is None else _copy(name, find(base, shelf))
    paths.atomic_write(target, text)
    return target


def find(name: str, shelf: ThemeShelf) -> Path:
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
