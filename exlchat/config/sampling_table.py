"""The table `[sampling]` of settings.toml: any control of how tokens are drawn that has no key of its own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from exlchat.chat.presets.control_values import from_plain, require_control, to_plain
from exlchat.config.kinds import Kind, TomlValue
from exlchat.config.setting import toml_text
from exlchat.llm.controls import CONTROLS

SamplingTable = tuple[tuple[str, Any], ...]
"""Controls with their values, in the order of the file."""
OWN_KEYS = ("temperature", "top_k", "top_p", "min_p")
"""Those that are settings themselves."""


@dataclass(frozen=True, slots=True)
class Controls(Kind):
    """Values by the names of `sampling_controls.CONTROLS`, but for those of `OWN_KEYS`."""

    @property
    def what(self) -> str:
        """As TOML has it."""
        return "a table of sampling controls, such as xtc_probability = 0.5 (docs/sampling.md lists them)"

    def from_toml(self, value: object) -> SamplingTable:
        """A table, each of its values checked by itself."""
        if isinstance(value, tuple):
            return value
        if not isinstance(value, dict):
            raise self.refused(value)
        return tuple((name, _value(name, one)) for name, one in value.items())

    def from_text(self, text: str) -> SamplingTable:
        """`xtc_probability = 0.5, dry_breakers = ["\\n"]`: TOML, with commas between the values."""
        text = text.strip()
        inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
        try:
            found = tomllib.loads(f"table = {{{inner}}}")
        except (ValueError, RecursionError):
            found = {}
        if found.keys() != {"table"}:
            raise self.refused(text)
        return self.from_toml(found["table"])

    def to_text(self, value: Any) -> str:
        """As in the environment."""
        return ", ".join(f"{name} = {toml_text(to_plain(name, one))}" for name, one in value)

    def to_toml(self, value: Any) -> TomlValue:
        """A table."""
        return {name: to_plain(name, one) for name, one in value}


def _value(name: str, value: object) -> Any:
    """Raises `ValueError` that goes on behind the name of the setting."""
    if name in OWN_KEYS:
        raise ValueError(f"has {name}, which is a key of its own; write it above the tables")
    try:
        require_control(name)
        return from_plain(name, value)
    except ValueError as error:
        raise ValueError(f"cannot be taken: {error}") from None


CONTROL_NAMES = tuple(name for name in CONTROLS if name not in OWN_KEYS)
"""What the table may say."""
