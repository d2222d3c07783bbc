"""The fields of a request's JSON body, read one by one: each is of its kind, or the request is refused.

What nobody has asked for is not refused but named: clients send much that means something to other servers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from exlchat.api.errors import ApiError, bad
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import one_line, storable

_T = TypeVar("_T")
_MOST_NAMED = 40
_SHOWN = 60

MOST_BYTES = 16 * 10**6
"""Of a body."""


def read_body(data: bytes) -> Fields:
    """The object that a body writes.

    Raises:
        ApiError: too large, not UTF-8, not JSON, or no object.
    """
    try:
        value = read_json(data, most=MOST_BYTES)
    except JsonError as error:
        raise bad(None, f"the body cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise bad(None, 'the body is no JSON object; send one, as {"messages": [...]}')
    return Fields(value)


class Fields:
    """An object of JSON. `null` is as good as absent; every reading is noted."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where
        self._asked: set[str] = set()
        self._nested: dict[str, Fields] = {}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names that nobody has asked for, also within objects that were read."""
        unread = [name for name in self._values if name in self and name not in self._asked]
        left = [self._where + one_line(storable(name), _SHOWN) for name in unread]
        left += [name for one in self._nested.values() for name in one.ignored]
        return tuple(sorted(left)[:_MOST_NAMED])

    def raw(self, name: str) -> Any:
        """A value of any kind; `None` where there is none."""
        self._asked.add(name)
        return self._values.get(name)

    def first(self, *names: str) -> str:
        """Of names for one thing the first that is there; the first of all where none is. All count as read."""
        self._asked.update(names)
        return next((name for name in names if name in self), names[0])

    def text(self, name: str, default: str = "") -> str:
        return self._of(name, default, "a text", lambda value: storable(value) if isinstance(value, str) else None)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._of(name, default, "true or false", lambda value: value if isinstance(value, bool) else None)

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        def read(value: Any) -> float | None:
            good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
            return float(value) if good else None

        return self._of(name, default, f"a number from {low:g} to {high:g}", read)

    def whole(self, name: str, default: int | None, low: int, high: int | None = None) -> int | None:
        def read(value: Any) -> int | None:
            if isinstance(value, float) and value.is_integer():
                # Some clients write all numbers as floats.
                value = int(value)
            good = isinstance(value, int) and not isinstance(value, bool)
            return value if good and low <= value and (high is None or value <= high) else None

        upper = "or more" if high is None else f"to {high}"
        return self._of(name, default, f"a whole number, {low} {upper}", read)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object of whatever is in it; an empty one where there is none."""
        return self._of(name, {}, "an object", lambda value: value if isinstance(value, dict) else None)

    def nested(self, name: str) -> Fields:
        """An object within this one, to be read; an empty one where there is none."""
        return self._nested.setdefault(name, Fields(self.mapping(name), f"{self._where}{name}."))

    def listed(self, name: str) -> list[Any] | None:
        return self._of(name, None, "a list", lambda value: value if isinstance(value, list) else None)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text or a list of texts; empty ones say nothing."""

        def read(value: Any) -> tuple[str, ...] | None:
            found = [value] if isinstance(value, str) else value
            if not isinstance(found, list) or len(found) > most or not all(isinstance(one, str) for one in found):
                return None
            return tuple(storable(one) for one in found if one)

        return self._of(name, (), f"a text, or a list of at most {most} texts", read)

    def wrong(self, name: str, message: str) -> ApiError:
        """What is wrong with a field that reads well."""
        return bad(f"{self._where}{name}", f"{self._where}{name}: {message}")

    def _of(self, name: str, default: _T, kind: str, read: Callable[[Any], _T | None]) -> _T:
        value = self.raw(name)
        if value is None:
            return default
        found = read(value)
        if found is None:
            raise bad(f"{self._where}{name}", f"{self._where}{name} is {_shown(value)}; it must be {kind}")
        return found


def _shown(value: Any) -> str:
    return one_line(repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "too large", _SHOWN)
