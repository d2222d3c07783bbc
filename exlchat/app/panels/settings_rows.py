"""The settings as rows to show, made from the declaration of the settings and from the registry of actions."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exlchat.app.keys.keymap import BINDABLE, Keymap, with_keys
from exlchat.config.kinds import Choice, FolderList, Switch, Text, Whole, split_keys
from exlchat.config.schema import GROUPS, SETTINGS, grouped
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from exlchat.config.files import Reading
    from exlchat.config.kinds import TomlValue
    from exlchat.config.schema import Setting

_VALUE_CELLS = 60
_NAME_CELLS = 15
_NONE = "none"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One value that can be changed: a setting, or the keys of one action.

    Args:
        key: as `save_setting` takes it.
        setting: its declaration.
        action_id: of the action, for keys.
    """

    key: str
    setting: Setting
    action_id: str = ""

    @property
    def name(self) -> str:
        return self.action_id or self.key

    @property
    def help(self) -> str:
        return BINDABLE[self.action_id].help if self.action_id else self.setting.help

    @property
    def is_switch(self) -> bool:
        """Whether Enter changes it at once."""
        return isinstance(self.setting.kind, Switch)

    @property
    def is_theme(self) -> bool:
        kind = self.setting.kind
        return isinstance(kind, Text) and kind.source == "themes"

    @property
    def has_lines(self) -> bool:
        return self.key == "system" or isinstance(self.setting.kind, FolderList)

    def choices(self, themes: Sequence[str]) -> list[str]:
        kind = self.setting.kind
        if self.is_theme:
            return list(themes)
        found = [*kind.values] if isinstance(kind, Choice) else []
        if isinstance(kind, Whole):
            found = [str(one) for one in kind.choices]
        return [*([_NONE] if found and self.setting.optional else []), *found]

    def default(self) -> str:
        if self.action_id:
            return ", ".join(BINDABLE[self.action_id].keys)
        return self.setting.shown(self.setting.default)

    def in_file(self, reading: Reading) -> bool:
        if self.action_id:
            return self.action_id in dict(reading.file.values.get("keys", ()))
        return self.key in reading.file.values

    def text(self, reading: Reading) -> str:
        """What the file says, else the default, as one would type it."""
        if self.action_id:
            own = dict(reading.file.values.get("keys", ()))
            return ", ".join(own.get(self.action_id, BINDABLE[self.action_id].keys))
        value = reading.file.values.get(self.key, self.setting.default)
        return "" if value is None else self.setting.kind.to_text(value)

    def shown(self, holds: Any, keys: Keymap) -> str:
        if self.action_id:
            return ", ".join(keys.keys(self.action_id))
        if holds in (None, ()):
            return f"({self.setting.unset or _NONE})"
        return one_line(self.setting.kind.to_text(holds).replace("\n", " · "), _VALUE_CELLS)

    def value(self, text: str, reading: Reading) -> TomlValue:
        """What to write for a text; `None` takes the key out.

        Raises:
            ValueError: it cannot be; one line.
        """
        if self.action_id:
            keys = with_keys(reading.file.values.get("keys", ()), self.action_id, split_keys(text))
            return keys[0] if len(keys) == 1 else list(keys)
        if not text.strip() and (self.setting.optional or self.setting.default == ()):
            return None
        value = self.setting.from_text(text)
        return None if value is None else self.setting.kind.to_toml(value)


def groups() -> Iterator[tuple[str, str, list[SettingRow]]]:
    for group, settings in grouped():
        rows = [SettingRow(one.key, one) for one in settings if one.key != "keys"]
        if len(rows) < len(settings):
            rows += [SettingRow(f"keys.{action}", SETTINGS["keys"], action) for action in BINDABLE]
        yield group, GROUPS[group], rows


def row_of(key: str) -> SettingRow:
    """The row of a key.

    Raises:
        ValueError: there is none; one line.
    """
    rows = {row.key: row for _, _, listed in groups() for row in listed}
    if key in rows:
        return rows[key]
    nearest = difflib.get_close_matches(key, rows, n=1)
    raise ValueError(f"there is no setting {one_line(key, 40)}; did you mean {nearest[0]}?" if nearest else _none(key))


def _none(key: str) -> str:
    return f"there is no setting {one_line(key, 40)}; /settings lists all"


def padded(name: str) -> str:
    return f"{name:<{_NAME_CELLS}} "
