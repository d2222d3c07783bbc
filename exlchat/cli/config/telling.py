"""Settings in words: for `config show`, for a new file, and for the page in docs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from exlchat.app.commands.actions import ACTIONS
from exlchat.chat.presets.control_values import to_text
from exlchat.config.kinds import toml_text
from exlchat.config.schema import GROUPS, SETTINGS
from exlchat.llm.controls import CONTROLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from exlchat.config.files import Reading
    from exlchat.config.schema import Setting

_WIDTH = 100


def in_groups() -> Iterator[tuple[str, list[Setting]]]:
    """The groups with their settings, in the order to show them."""
    for group in GROUPS:
        yield group, [one for one in SETTINGS.values() if one.group == group]


def told(setting: Setting, reading: Reading) -> list[str]:
    """A setting in a few lines: value and where it comes from, what it means, what beats it."""
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


def as_json(setting: Setting, reading: Reading) -> dict[str, Any]:
    """A setting for scripts."""
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
    for group, settings in in_groups():
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


def page_rows() -> Iterator[str]:
    """The rows of the table in docs/settings.md."""
    for group, settings in in_groups():
        yield f"| **{group}** | | {GROUPS[group]} | | |"
        for one in settings:
            default = one.unset if one.default is None else f"`{one.shown(one.default)}`"
            beaten = ", ".join(f"`{name}`" for name in one.options)
            about = f"{one.help} It must be {one.kind.what}."
            yield f"| `{one.key}` | {default} | {about} | {one.when} | {beaten} |"


def key_rows() -> Iterator[str]:
    """The rows of the table of actions in docs/settings.md."""
    where = {
        "everywhere": "everywhere",
        "composer": "in the message",
        "message": "on a message",
        "sidebar": "in the sidebar",
    }
    for action in ACTIONS:
        if action.keys:
            yield f"| `{action.id}` | {', '.join(f'`{key}`' for key in action.keys)} | {where[action.place]} |"


def control_rows() -> Iterator[str]:
    """The rows of the table of sampling controls in docs/sampling.md."""
    for name, one in CONTROLS.items():
        numbers = one.kind in ("number", "whole")
        allowed = one.range.removeprefix("a ") if numbers else _LISTS[one.kind]
        off = to_text(name, one.off) if numbers else "the usual one" if one.kind == "order" else _off_list(name)
        usual = "" if one.usual is None else f"`{one.usual:g}`"
        needs = f" With `{one.leader}`." if one.leader else ""
        yield f"| `{name}` | {one.group} | {one.help}{needs} | {allowed} | {off} | {usual} |"


def _off_list(name: str) -> str:
    off = CONTROLS[name].off
    return f"`{to_text(name, off)}`" if off else "none"


_LISTS = {
    "texts": "texts",
    "tokens": "tokens: ids, or texts that are one token",
    "biases": "tokens with numbers from -1000 to 1000",
    "order": "steps: all, or those that come last",
}
