"""What is known of one setting, and how a value of it is read from TOML and from typed text, and shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from exlchat.config.kinds import Kind, TomlValue

When = Literal["at once", "next conversation", "next load"]


@dataclass(frozen=True, slots=True)
class About:
    """What is declared of a setting beside its name, type and default.

    Args:
        kind: which values there are.
        group: one of `settings.GROUPS`.
        when: when a changed value takes effect in a running app.
        help: one sentence.
        options: of the command line, that beat it.
        unset: what holds when it is left out and has no default value.
        example: a value to show where there is no default.
    """

    kind: Kind
    group: str
    when: When
    help: str
    options: tuple[str, ...] = ()
    unset: str = ""
    example: Any = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of `settings.toml`, with all that is known of it."""

    key: str
    default: Any
    about: About

    @property
    def variable(self) -> str:
        """The environment variable that beats the file."""
        return f"EXLCHAT_{self.key.upper()}"

    @property
    def optional(self) -> bool:
        """Whether it may have no value at all."""
        return self.default is None

    def from_toml(self, value: object) -> Any:
        """The value in the file, checked. Raises `ValueError` in one line that names the key."""
        try:
            return self.about.kind.from_toml(value)
        except ValueError as error:
            raise ValueError(f"{self.key} {error}") from None

    def from_text(self, text: str, name: str | None = None) -> Any:
        """A typed value, checked; "none" is no value. Raises `ValueError` in one line that names `name` or the key."""
        if self.optional and text.strip().lower() == "none":
            return None
        try:
            return self.about.kind.from_text(text)
        except ValueError as error:
            also = ", or none" if self.optional else ""
            raise ValueError(f"{name or self.key} {error}{also}") from None

    def shown(self, value: Any) -> str:
        """As TOML, in one line; what no value means, in brackets."""
        return f"({self.about.unset})" if value is None else toml_text(self.about.kind.to_toml(value))


def toml_text(value: TomlValue) -> str:
    """A value as TOML writes it, in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's, but for one character that JSON leaves alone.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            return f"{{{', '.join(f'{toml_key(key)} = {toml_text(one)}' for key, one in value.items())}}}"
    return str(value)


def toml_key(key: str) -> str:
    """Bare where TOML allows that."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else toml_text(key)
