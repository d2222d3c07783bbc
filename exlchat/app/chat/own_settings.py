"""What a conversation says itself of how it is spoken to, and what holds in it then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exlchat.app.generation_settings import NAMES, GenerationSettings, drawn_by
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.answer_options import unpack_answer_options
from exlchat.chat.presets.control_values import from_plain, to_plain
from exlchat.chat.prompt.context_policy import CONTEXT_POLICIES
from exlchat.chat.prompt.note import NOTE, Note, note_in
from exlchat.chat.speakers import SPEAKS, SpeaksNext, speaks_next
from exlchat.config.layers import Layer, Resolved, resolve
from exlchat.llm.controls import CONTROLS
from exlchat.llm.limits import LARGEST_SEED
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.personas.group import Group

OWNED = (*NAMES, "template")
"""What a conversation can say."""
SETTLED: Final[dict[SpeaksNext, str]] = {
    "named": "whoever is named speaks, else by turn",
    "turn": "by turn",
    "chosen": "whoever you choose speaks",
}
"""How it is settled who of a group speaks next, in words."""
_MOST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """Values by the keys of `OWNED`; a `None` is said as well. `presets` names the preset that a value is of.

    `note` is the author's note, which stands in every prompt. `speaks` is how it is settled who of a group speaks next.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, str] = field(default_factory=dict)
    note: Note | None = None
    speaks: SpeaksNext | None = None

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self.values) or self.note is not None or self.speaks is not None

    def saying(self, values: Mapping[str, Any], presets: Mapping[str, str] | None = None) -> OwnSettings:
        rest = self.without(values)
        named = {name: one for name, one in (presets or {}).items() if name in values}
        return replace(rest, values={**rest.values, **values}, presets={**rest.presets, **named})

    def without(self, names: Iterable[str]) -> OwnSettings:
        gone = frozenset(names)
        return replace(
            self,
            values={name: value for name, value in self.values.items() if name not in gone},
            presets={name: one for name, one in self.presets.items() if name not in gone},
        )

    @property
    def layer(self) -> Layer:
        return Layer("conversation", self.values)

    def as_json(self) -> dict[str, Any]:
        plain = {name: _plain(name, value) for name, value in self.values.items()}
        told = {"presets": dict(self.presets) or None, NOTE: self.note and self.note.as_json(), SPEAKS: self.speaks}
        return {"values": plain, **{key: one for key, one in told.items() if one is not None}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> OwnSettings:
        """What `as_json` wrote; values that cannot be, and keys that this program does not know, are left out."""
        said = content.get("values") if content is not None else None
        named = content.get("presets") if content is not None else None
        values: dict[str, Any] = {}
        for name, plain in said.items() if isinstance(said, dict) else ():
            try:
                values[name] = _value(name, plain)
            except (ValueError, TypeError, LookupError):
                continue
        presets = named.items() if isinstance(named, dict) else ()
        own = {name: one for name, one in presets if name in values and isinstance(one, str)}
        return cls(values, own, note_in(content), speaks_next(content))


def _plain(name: str, value: Any) -> Any:
    if name in CONTROLS:
        plain = to_plain(name, value)
        return list(plain.items()) if isinstance(plain, dict) else plain
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _value(name: str, plain: Any) -> Any:
    """Raises `ValueError`, `TypeError` or `LookupError` for what cannot be."""
    if name in CONTROLS:
        return from_plain(name, [tuple(one) for one in plain] if name == "logit_bias" else plain)
    if name in ANSWER_OPTIONS:
        return getattr(unpack_answer_options({name: plain}), name)
    good = {
        "seed": plain is None or (type(plain) is int and 0 <= plain <= LARGEST_SEED),
        "max_tokens": plain is None or (type(plain) is int and 1 <= plain <= _MOST_TOKENS),
        "context_policy": plain in CONTEXT_POLICIES,
        "template": plain is None or isinstance(plain, str),
    }
    if not good[name]:
        raise ValueError(f"{name} cannot be {one_line(str(plain), 40)}")
    return plain


@dataclass(frozen=True, slots=True)
class Spoken:
    """How a conversation is spoken to, and of which layers. `problem` is why what it says itself does not hold.

    `persona` speaks in it, or a `group` does.
    """

    held: Resolved
    own: OwnSettings
    generation: GenerationSettings
    persona: FrozenPersona | None = None
    problem: str = ""
    group: Group | None = None

    @property
    def who(self) -> str:
        """What whoever speaks is called: of a group all, in the order of their turns; empty where nobody does."""
        if self.group is not None:
            return ", ".join(self.group.names)
        return "" if self.persona is None else self.persona.name

    @property
    def chosen(self) -> bool:
        """Whether the user chooses each time who of a group speaks."""
        return self.group is not None and self.speaks == "chosen"

    @property
    def speaks(self) -> SpeaksNext:
        """How it is settled who of a group speaks next."""
        return self.own.speaks or "named"

    @property
    def words(self) -> tuple[str, ...]:
        """What the conversation says itself and holds, each in a few words: a preset, a value by itself, a note."""
        own = [name for name in OWNED if name in self.own.values and self.held.source(name) == "conversation"]
        presets = dict.fromkeys(one_line(self.own.presets[name], 30) for name in own if name in self.own.presets)
        alone = (name for name in own if name not in self.own.presets)
        noted = () if self.own.note is None else ("author's note",)
        return (*presets, *(f"{name} {one_line(self._shown(name), 30)}" for name in alone), *noted)

    def _shown(self, name: str) -> str:
        return (self.template or "model") if name == "template" else self.generation.shown(name)

    @property
    def template(self) -> str | None:
        value: str | None = self.held.value("template")
        return value


def spoken_to(
    held: Resolved,
    model: Path | None,
    own: OwnSettings,
    persona: FrozenPersona | None,
    overruled: Iterable[str] = (),
) -> Spoken:
    """What holds in a conversation; arguments as of `layered`.

    Raises:
        ValueError: values contradict each other, in one line.
    """
    resolved = layered(held, own, persona, overruled)
    generation = drawn_by(resolved, model)
    sources = {name: f"{preset} · conversation" for name, preset in own.presets.items()}
    shown = {name: one for name, one in sources.items() if resolved.source(name) == "conversation"}
    return Spoken(resolved, own, generation.from_sources(shown), persona)


def layered(held: Resolved, own: OwnSettings, persona: FrozenPersona | None, overruled: Iterable[str] = ()) -> Resolved:
    """The layers of a conversation.

    Args:
        held: what holds for the model, in this start.
        own: what the conversation says itself.
        persona: who speaks in it; whoever this start was given speaks in new conversations alone.
        overruled: what was said in it since this start, which was given something else.
    """
    return resolve(*_below(held, frozenset(overruled)), own.layer, *([] if persona is None else [layer_of(persona)]))


def _below(held: Resolved, overruled: frozenset[str]) -> Iterable[Layer]:
    for layer in held.layers:
        if layer.place in ("typed", "preset"):
            kept = {key: value for key, value in layer.values.items() if key not in overruled}
            yield Layer(layer.place, kept, layer.name)
        elif layer.place not in ("conversation", "persona"):
            yield layer


def layer_of(persona: FrozenPersona, **values: str) -> Layer:
    """What a persona wishes for; `values` are said by it as well."""
    template = {"template": persona.template} if persona.template else {}
    return Layer("persona", {**persona.sampling.decided(), **values, **template}, persona.source)


def begun_with(held: Resolved, own: OwnSettings, overruled: Iterable[str]) -> OwnSettings:
    """What a conversation that begins says itself: what this start was given, and what was said since."""
    gone = frozenset(overruled)
    given: dict[str, Any] = {}
    presets: dict[str, str] = {}
    for layer in reversed(held.layers):
        if layer.place in ("typed", "preset"):
            said = {name: layer.value(name) for name in OWNED if layer.says(name) and name not in gone}
            given |= said
            presets = {name: one for name, one in presets.items() if name not in said}
            presets |= dict.fromkeys(said, layer.name) if layer.place == "preset" else {}
    return replace(own, values=given, presets=presets).saying(own.values, own.presets)
