"""The values that /set changes: how answers are drawn, how long they get, and what they see of the conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.chat import speech_values
from exlchat.chat.presets import control_values
from exlchat.chat.prompt.context import CONTEXT_POLICIES, ContextPolicy
from exlchat.chat.speech import PLAIN, Speech
from exlchat.chat.speech_values import SPEECH
from exlchat.config.schema import CHAT_TEMPERATURE, SETTINGS
from exlchat.config.settings import SettingsError
from exlchat.llm.controls import CONTROLS
from exlchat.untrusted.text import did_you_mean, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.app.options import AppOptions
    from exlchat.chat.presets.wishes import SamplingWishes
    from exlchat.config.settings import Settings
    from exlchat.llm.sampling import SamplingSettings

SAMPLED = tuple(CONTROLS)
MAIN = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "context_policy")
"""Those that are shown whatever their values are; of the others, those that are on."""
NAMES = (*MAIN, *(name for name in SAMPLED if name not in MAIN), *SPEECH)
EXPLAINED = {
    **{name: value.help for name, value in SPEECH.items()},
    **{name: SETTINGS[name].about.help for name in NAMES if name in SETTINGS},
    **{name: control.help for name, control in CONTROLS.items()},
    "seed": "Makes draws repeatable; none takes a fresh one each time.",
}
"""What each does, in a sentence."""
TYPED = "typed"
LARGEST_SEED = 2**63 - 1
_OFF = ("none", "off")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """`seed` `None` draws a fresh one for each answer; `max_tokens` `None` goes on until the context is full.

    `sources` says where values come from, for people: "settings", "preset wild". Those not named are defaults.
    """

    sampling: SamplingSettings
    seed: int | None = None
    max_tokens: int | None = None
    context_policy: ContextPolicy = "stop"
    speech: Speech = PLAIN
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def value(self, name: str) -> Any:
        """The value of one of `NAMES`."""
        return getattr(self.sampling if name in CONTROLS else self.speech if name in SPEECH else self, name)

    def source(self, name: str) -> str:
        """Where the value comes from."""
        return self.sources.get(name, "default")

    def shown_names(self) -> list[str]:
        """Those of `NAMES` that say all about an answer: the main ones, and what is not as usual."""
        return [name for name in NAMES if name in MAIN or self.value(name) != usual_value(name)]

    def with_value(self, name: str, text: str) -> GenerationSettings:
        """A copy with one value changed, as typed after /set. "none" clears `seed` and `max_tokens`.

        Raises:
            ValueError: unknown name or impossible value, in one line.
        """
        return self._with_text(name, text)._from(TYPED, [name])

    def speaking(self, source: str, **values: Any) -> GenerationSettings:
        """A copy with values of `Speech` in place, which come from `source`.

        Raises:
            ValueError: out of range, in one line.
        """
        return replace(self, speech=replace(self.speech, **values))._from(source, values)

    def _with_text(self, name: str, text: str) -> GenerationSettings:
        if name in CONTROLS:
            return replace(self, sampling=replace(self.sampling, **{name: control_values.from_text(name, text)}))
        if name in SPEECH:
            return replace(self, speech=replace(self.speech, **{name: speech_values.from_text(name, text)}))
        match name:
            case "seed":
                seed = None if text in _OFF else _whole(name, text)
                if seed is not None and not 0 <= seed <= LARGEST_SEED:
                    raise ValueError(f"seed is {seed}; it must be from 0 to {LARGEST_SEED}, or none")
                return replace(self, seed=seed)
            case "max_tokens":
                tokens = None if text in _OFF else _whole(name, text)
                if tokens is not None and tokens < 1:
                    raise ValueError(f"max_tokens is {tokens}; it must be at least 1, or none")
                return replace(self, max_tokens=tokens)
            case "context_policy":
                return replace(self, context_policy=_policy(text))
        raise ValueError(f"there is no setting {one_line(name, 40)}; {did_you_mean(name, NAMES, 'there are')}")

    def with_wishes(self, wishes: SamplingWishes, source: str) -> GenerationSettings:
        """A copy with the wished values in place, which come from `source`.

        Raises:
            ValueError: they contradict what holds now, in one line.
        """
        limit = self.max_tokens if wishes.max_tokens is None else wishes.max_tokens
        speech = wishes.speak(self.speech)
        wished = replace(self, sampling=wishes.apply(self.sampling), speech=speech, max_tokens=limit)
        return wished._from(source, wishes.decided())

    def taking(self, names: Iterable[str], other: GenerationSettings) -> GenerationSettings:
        """A copy with some values as `other` has them, and from where `other` has them.

        Raises:
            ValueError: they contradict those that stay, in one line.
        """
        taken = {name: other.value(name) for name in names}
        sampled = {name: value for name, value in taken.items() if name in CONTROLS}
        spoken = {name: value for name, value in taken.items() if name in SPEECH}
        rest = {name: value for name, value in taken.items() if name not in CONTROLS and name not in SPEECH}
        sources = {name: other.source(name) for name in taken}
        speech = replace(self.speech, **spoken)
        sampling = replace(self.sampling, **sampled)
        return replace(self, sampling=sampling, speech=speech, **rest, sources={**self.sources, **sources})

    def _from(self, source: str, names: Iterable[str]) -> GenerationSettings:
        return replace(self, sources={**self.sources, **dict.fromkeys(names, source)})

    def shown(self, name: str) -> str:
        """The value of one of `NAMES`, for people."""
        value = self.value(name)
        if name in CONTROLS:
            return control_values.shown(name, value)
        if name in SPEECH:
            return speech_values.shown(name, value)
        if value is None:
            return "fresh for each answer" if name == "seed" else "until the context is full"
        return str(value)

    def describe(self) -> str:
        """All that is on, in one line."""
        return " · ".join(f"{name} {self.shown(name)}" for name in self.shown_names())

    def changes_from(self, before: GenerationSettings) -> list[str]:
        """What is no longer as before, value by value."""
        changed = [name for name in NAMES if self.value(name) != before.value(name)]
        return [f"{name} {before.shown(name)} → {self.shown(name)}" for name in changed]


def usual_value(name: str) -> Any:
    """The value at which one of `NAMES` changes nothing; those of an answer's length and seed have none."""
    return CONTROLS[name].off if name in CONTROLS else speech_values.usual(name) if name in SPEECH else None


def drawn_line(sampling: SamplingSettings) -> str:
    """How tokens are drawn, in one line: the first four values, and those of the others that are not as usual."""
    names = GenerationSettings(sampling).shown_names()
    return " · ".join(
        f"{name} {control_values.shown(name, getattr(sampling, name))}" for name in names if name in CONTROLS
    )


def at_start(options: AppOptions, settings: Settings, model: Path | None) -> GenerationSettings:
    """What a model begins with: what was typed wins over the settings file, and that over the defaults.

    Raises:
        SettingsError: what was typed contradicts the settings, in one line.
    """
    start = of_settings(settings, bundled_guide=model == paths.bundled_model())
    if options.seed is not None:
        start = replace(start, seed=options.seed)._from(TYPED, ["seed"])
    if options.context_policy is not None:
        start = replace(start, context_policy=options.context_policy)._from(TYPED, ["context_policy"])
    if options.sampling.dynatemp_high and start.sampling.temperature == 0 and start.source("temperature") == "default":
        # That the guide answers greedily is a default, and gives way to what cannot be with it.
        start = replace(start, sampling=replace(start.sampling, temperature=CHAT_TEMPERATURE))
    try:
        start = start.with_wishes(options.sampling, TYPED)
    except ValueError as error:
        raise SettingsError(f"what this start was given does not go with settings.toml: {error}") from error
    return replace(start, sources={**start.sources, **options.sampling_sources})


def of_settings(settings: Settings, *, bundled_guide: bool) -> GenerationSettings:
    """What the settings say, for the bundled guide or for any other model."""
    in_table = {name for name, _ in settings.sampling}
    sources = {}
    for name in NAMES:
        key = "sampling" if name in in_table else name
        if key in settings.from_environment:
            sources[name] = "environment"
        elif name in in_table or (name in SETTINGS and getattr(settings, name) != SETTINGS[name].default):
            sources[name] = "settings"
    return GenerationSettings(
        settings.drawing(bundled_guide=bundled_guide),
        max_tokens=settings.max_tokens,
        context_policy=settings.context_policy,
        speech=Speech(draft=settings.draft),
        sources=sources,
    )


def _policy(text: str) -> ContextPolicy:
    for policy in CONTEXT_POLICIES:
        if policy == text:
            return policy
    raise ValueError(f"context_policy is {text!r}; it must be one of {', '.join(CONTEXT_POLICIES)}")


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a whole number") from None
