"""What holds of all that was said about a setting: layers, one over the other. The order is `PLACES`, and only there.

Keys are those of `Settings`, the rows of its table of sampling (`CONTROL_NAMES`), and what can be said of one start but
not in the file: `seed` and the names of `ANSWER_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from exlchat.chat.answer_option_values import ANSWER_OPTIONS, usual
from exlchat.config.kinds import CONTROL_NAMES
from exlchat.config.schema import EITHER, SETTINGS
from exlchat.llm.controls import CONTROLS

if TYPE_CHECKING:
    from exlchat.config.kinds import SamplingTable

Place = Literal["typed", "preset", "conversation", "persona", "environment", "remembered", "file", "default"]
PLACES: tuple[Place, ...] = get_args(Place)
"""What comes first wins. `preset` and `persona` are those named at the start, or the persona that speaks in the open
conversation; `conversation` is what that says itself; `remembered` is so for one model."""
STARTED: tuple[Place, ...] = ("typed", "preset", "persona")
"""What a start was given, which holds until it ends."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says, checked: values by key; a `None` is said as well. `name` is for people: "preset wild"."""

    place: Place
    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def says(self, key: str) -> bool:
        """Whether it has a value for a key; for the table of sampling, for any of its rows."""
        if key == "sampling" and not self.values.keys().isdisjoint(CONTROL_NAMES):
            return True
        return key in self.values or (key in CONTROL_NAMES and key in self._table)

    def ends(self, key: str) -> bool:
        """Whether nothing below is asked: a whole table takes the place of one below, as a size does of either size."""
        rows = EITHER if key in EITHER else ("sampling",) if key in CONTROL_NAMES else ()
        return any(one in self.values for one in rows)

    def value(self, key: str) -> Any:
        if key == "sampling":
            return (*self._table.items(), *((one, self.values[one]) for one in CONTROL_NAMES if one in self.values))
        return self.values[key] if key in self.values else self._table[key]

    @property
    def _table(self) -> dict[str, Any]:
        return dict(self.values.get("sampling", ()))


_DEFAULT = Layer(
    "default",
    {
        **{name: CONTROLS[name].off for name in CONTROL_NAMES},
        **{name: usual(name) for name in ANSWER_OPTIONS},
        **{key: setting.default for key, setting in SETTINGS.items()},
        "seed": None,
    },
)


def typed(**values: Any) -> Layer:
    """What was typed on a command line; `None` was not."""
    return Layer("typed", {key: value for key, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Resolved:
    """Layers in the order of `PLACES`, each at most once; the defaults are the last."""

    layers: tuple[Layer, ...]

    def value(self, key: str) -> Any:
        return self._sampling() if key == "sampling" else self.origin(key).value(key)

    def source(self, key: str) -> Place:
        return self.origin(key).place

    def origin(self, key: str) -> Layer:
        first = self._first(key)
        return first if first.says(key) else _DEFAULT

    def beaten(self, key: str) -> Layer | None:
        """The layer that stands over what the file says, or could say; `None` where the file would hold."""
        first = self._first(key)
        return first if PLACES.index(first.place) < PLACES.index("file") else None

    def replace(self, layer: Layer) -> Resolved:
        return resolve(*(one for one in self.layers if one.place not in (layer.place, "default")), layer)

    def _first(self, key: str) -> Layer:
        return next(layer for layer in self.layers if layer.says(key) or layer.ends(key))

    def _sampling(self) -> SamplingTable:
        """The table of a file or the environment as it is there; under rows that stand above, all that are on."""
        table = next(layer.values["sampling"] for layer in self.layers if "sampling" in layer.values)
        above = [one for one in reversed(self.layers) if PLACES.index(one.place) < PLACES.index("environment")]
        rows = [row for layer in above for row in layer.value("sampling")]
        if not rows:
            return tuple(table)
        return tuple((name, value) for name, value in dict([*table, *rows]).items() if value != CONTROLS[name].off)


def resolve(*layers: Layer) -> Resolved:
    """Layers of different places, in any order, over the defaults."""
    return Resolved(tuple(sorted((*layers, _DEFAULT), key=lambda layer: PLACES.index(layer.place))))
