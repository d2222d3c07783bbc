"""The decorators at the top of a lorebook entry (Character Card V3, "Decorators"): lines that begin with `@@`.

Those that place an entry at a depth of the chat are read and not followed: an entry stays where it was told, because
one that wanders would change the prompt before it at every turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_NUMBERS = {
    "activate_only_after": "only_after",
    "activate_only_every": "only_every",
    "scan_depth": "scan_depth",
    "is_greeting": "is_greeting",
}
_FLAGS = ("activate", "dont_activate", "keep_activate_after_match", "dont_activate_after_match")
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Decorators:
    """What the decorators of one entry say; the default says nothing. Names are those of the specification."""

    activate: bool = False
    dont_activate: bool = False
    keep_activate_after_match: bool = False
    dont_activate_after_match: bool = False
    only_after: int | None = None
    only_every: int | None = None
    scan_depth: int | None = None
    is_greeting: int | None = None
    additional_keys: tuple[tuple[str, ...], ...] = ()
    exclude_keys: tuple[str, ...] = ()

    @property
    def conditional(self) -> bool:
        """Whether an entry that is constant may still not be told."""
        return replace(self, activate=False) != Decorators()


def split_decorators(content: str) -> tuple[Decorators, str]:
    """The decorators at the top of an entry, and its text without them and without the blank lines around them.

    A name that is not known is passed over, and then its fallbacks (`@@@`) are tried, the first that is known counts.
    """
    found, text, _ = _read(content)
    return found, text


def unknown_decorators(content: Any) -> list[str]:
    """Names at the top of an entry that are passed over, and that no fallback stands in for."""
    return _read(content)[2] if isinstance(content, str) else []


def _read(content: str) -> tuple[Decorators, str, list[str]]:
    lines = content.split("\n")
    found = Decorators()
    place = 0
    taken: set[str] = set()
    unknown: list[str] = []
    satisfied = True
    for place, line in enumerate(lines):  # noqa: B007 - the place where the decorators end is wanted
        stripped = line.strip()
        if not stripped.startswith("@@"):
            if stripped:
                break
            continue
        is_fallback = stripped.startswith("@@@")
        if is_fallback and satisfied:
            continue
        name, _, value = stripped.lstrip("@").partition(" ")
        changed = None if name in taken else _with(found, name.lower(), value.strip())
        satisfied = changed is not None or name in taken
        if is_fallback and satisfied and unknown:
            unknown.pop()
        elif not is_fallback and not satisfied:
            unknown.append(name)
        if changed is not None:
            found = changed
            if name != "additional_keys":
                taken.add(name)
    else:
        place = len(lines)
    return found, "\n".join(lines[place:]).strip(), unknown


def _with(found: Decorators, name: str, value: str) -> Decorators | None:
    """`found` with one more decorator; `None` for one that is unknown or makes no sense."""
    if name in _FLAGS:
        return _changed(found, name, True)
    if name in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
            return None
        return _changed(found, _NUMBERS[name], int(value))
    keys = tuple(key for key in (part.strip() for part in value.split(",")) if key)
    if name == "additional_keys" and keys:
        return replace(found, additional_keys=(*found.additional_keys, keys))
    if name == "exclude_keys" and keys:
        return replace(found, exclude_keys=keys)
    return None


def _changed(found: Decorators, name: str, value: Any) -> Decorators:
    return replace(found, **{name: value})
