"""The values that /set changes: how answers are drawn, how long they get, and what they see of the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.chat import answer_option_values
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.answer_options import PLAIN, AnswerOptions
from exlchat.chat.presets import control_values
from exlchat.chat.prompt.context_policy import CONTEXT_POLICIES, ContextPolicy
from exlchat.config.files import SettingsError
from exlchat.config.schema import SETTINGS, usual_temperature
from exlchat.llm.controls import CONTROLS
from exlchat.llm.limits import LARGEST_SEED
from exlchat.llm.sampling import SamplingSettings
from exlchat.untrusted.text import did_you_mean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from exlchat.chat.presets.overrides import SamplingOverrides
    from exlchat.config.layers import Layer, Resolved

SAMPLED = tuple(CONTROLS)
MAIN = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "context_policy")
"""Those that are shown whatever their values are; of the others, those that are on."""
NAMES = (*MAIN, *(name for name in SAMPLED if name not in MAIN), *ANSWER_OPTIONS)
EXPLAINED = {
    **{name: value.help for name, value in ANSWER_OPTIONS.items()},
    **{name: SETTINGS[name].help for name in NAMES if name in SETTINGS},
    **{name: control.help for name, control in CONTROLS.items()},
    "seed": "Makes draws repeatable; none takes a fresh one each time.",
}
"""What each does, in a sentence."""
CONVERSATION = "conversation"
"""The source of what was said in the open conversation."""
_OFF = ("none", "off")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """`seed` `None` draws a fresh one for each answer; `max_tokens` `None` goes on until the context is full.

    `sources` says where values come from, for people: "settings", "preset wild". Those not named are defaults.
    """

    sampling: SamplingSettings
    seed: int | None = None
    max_tokens: int | None = None
    context_policy: ContextPolicy = "drop"
    speech: AnswerOptions = PLAIN
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def value(self, name: str) -> Any:
        return getattr(self.sampling if name in CONTROLS else self.speech if name in ANSWER_OPTIONS else self, name)

    def source(self, name: str) -> str:
        return self.sources.get(name, "default")

    def from_sources(self, sources: Mapping[str, str]) -> GenerationSettings:
        """A copy in which some values come from other sources."""
        return replace(self, sources={**self.sources, **sources})

    def shown_names(self) -> list[str]:
        """Those of `NAMES` that say all about an answer: the main ones, and what is not as usual."""
        return [name for name in NAMES if name in MAIN or self.value(name) != usual_value(name)]

    def with_value(self, name: str, text: str) -> GenerationSettings:
        """A copy with one value changed, as typed after /set. "none" clears `seed` and `max_tokens`.

        Raises:
            ValueError: unknown name or impossible value, in one line.
        """
        return self._with({name: _from_text(name, text)}, CONVERSATION)

    def speaking(self, source: str, **values: Any) -> GenerationSettings:
        """A copy with values of `AnswerOptions` in place, which come from `source`.

        Raises:
            ValueError: out of range, in one line.
        """
        return self._with(values, source)

    def with_overrides(self, overrides: SamplingOverrides, source: str) -> GenerationSettings:
        """A copy with the wished values in place, which come from `source`.

        Raises:
            ValueError: they contradict what holds now, in one line.
        """
        return self._with(overrides.decided(), source)

    def taking(self, names: Iterable[str], other: GenerationSettings) -> GenerationSettings:
        """A copy with some values as `other` has them, and from where `other` has them.

        Raises:
            ValueError: they contradict those that stay, in one line.
        """
        return self._with({name: other.value(name) for name in names}, other.sources)

    def _with(self, values: Mapping[str, Any], source: str | Mapping[str, str]) -> GenerationSettings:
        drawn = {name: value for name, value in values.items() if name in CONTROLS}
        spoken = {name: value for name, value in values.items() if name in ANSWER_OPTIONS}
        rest = {name: value for name, value in values.items() if name not in CONTROLS and name not in ANSWER_OPTIONS}
        said = {name: source if isinstance(source, str) else source.get(name, "default") for name in values}
        return replace(
            self,
            sampling=replace(self.sampling, **drawn),
            speech=replace(self.speech, **spoken),
            **rest,
            sources={**self.sources, **said},
        )

    def shown(self, name: str) -> str:
        value = self.value(name)
        if name in CONTROLS:
            return control_values.shown(name, value)
        if name in ANSWER_OPTIONS:
            return answer_option_values.shown(name, value)
        if value is None:
            return "fresh for each answer" if name == "seed" else "until the context is full"
        return str(value)

    def describe(self) -> str:
        return " · ".join(f"{name} {self.shown(name)}" for name in self.shown_names())

    def changes_from(self, before: GenerationSettings) -> list[str]:
        changed = [name for name in NAMES if self.value(name) != before.value(name)]
        return [f"{name} {before.shown(name)} → {self.shown(name)}" for name in changed]


def usual_value(name: str) -> Any:
    """The value at which one of `NAMES` changes nothing; those of an answer's length and seed have none."""
    return (
        CONTROLS[name].off if name in CONTROLS else answer_option_values.usual(name) if name in ANSWER_OPTIONS else None
    )


def drawn_line(sampling: SamplingSettings) -> str:
    """How tokens are drawn, in one line: the first four values, and those of the others that are not as usual."""
    names = GenerationSettings(sampling).shown_names()
    return " · ".join(
        f"{name} {control_values.shown(name, getattr(sampling, name))}" for name in names if name in CONTROLS
    )


def at_start(held: Resolved, model: Path | None) -> GenerationSettings:
    """How a model's answers are drawn by the settings that hold for it.

    Raises:
        SettingsError: what was typed contradicts the settings, in one line.
    """
    try:
        return drawn_by(held, model)
    except ValueError as error:
        raise SettingsError(f"what this start was given does not go with settings.toml: {error}") from error


def drawn_by(held: Resolved, model: Path | None) -> GenerationSettings:
    """The same of any layers.

    Raises:
        ValueError: they contradict each other, in one line.
    """
    values = {name: held.value(name) for name in NAMES}
    if values["temperature"] is None:
        guide = model == paths.bundled_model()
        values["temperature"] = usual_temperature(values["dynatemp_high"], bundled_guide=guide)
    return _USUAL._with(values, {name: _source(held.origin(name)) for name in NAMES})


_USUAL = GenerationSettings(SamplingSettings())


def _source(layer: Layer) -> str:
    return layer.name or ("settings" if layer.place == "file" else layer.place)


def _from_text(name: str, text: str) -> Any:
    if name in CONTROLS:
        return control_values.from_text(name, text)
    if name in ANSWER_OPTIONS:
        return answer_option_values.from_text(name, text)
    if name == "context_policy":
        if text not in CONTEXT_POLICIES:
            raise ValueError(f"context_policy is {text!r}; it must be one of {', '.join(CONTEXT_POLICIES)}")
        return text
    if name not in ("seed", "max_tokens"):
        raise ValueError(f"there is no setting {one_line(name, 40)}; {did_you_mean(name, NAMES, 'there are')}")
    number = None if text in _OFF else _whole(name, text)
    if number is not None and name == "seed" and not 0 <= number <= LARGEST_SEED:
        raise ValueError(f"seed is {number}; it must be from 0 to {LARGEST_SEED}, or none")
    if number is not None and name == "max_tokens" and number < 1:
        raise ValueError(f"max_tokens is {number}; it must be at least 1, or none")
    return number


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a whole number") from None
