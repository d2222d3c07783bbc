"""The values that /set changes: how answers are drawn, how long they get, and what they see of the conversation."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.context import CONTEXT_POLICIES, ContextPolicy
from exlchat.setting_list import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.chat.sampling.wishes import SamplingWishes
    from exlchat.engine.sampling_settings import SamplingSettings
    from exlchat.settings import Settings
    from exlchat.ui.options import AppOptions

NAMES = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "context_policy")
SAMPLED = ("temperature", "top_k", "top_p", "min_p")
EXPLAINED = {
    name: SETTINGS[name].about.help if name in SETTINGS else "Makes draws repeatable; none takes a fresh one each time."
    for name in NAMES
}
"""What each does, in a sentence: the one of the setting, where there is a setting of that name."""
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
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def value(self, name: str) -> float | int | str | None:
        """The value of one of `NAMES`."""
        found: float | int | str | None = getattr(self.sampling if name in SAMPLED else self, name)
        return found

    def source(self, name: str) -> str:
        """Where the value comes from."""
        return self.sources.get(name, "default")

    def with_value(self, name: str, text: str) -> GenerationSettings:
        """A copy with one value changed, as typed after /set. "none" clears `seed` and `max_tokens`.

        Raises:
            ValueError: unknown name or impossible value, in one line.
        """
        return self._with_text(name, text)._from(TYPED, [name])

    def _with_text(self, name: str, text: str) -> GenerationSettings:
        match name:
            case "temperature" | "top_p" | "min_p" | "top_k":
                return replace(self, sampling=_sampling(self.sampling, name, text))
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
        nearest = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(NAMES)}"
        raise ValueError(f"there is no setting {name}; {hint}")

    def with_wishes(self, wishes: SamplingWishes, source: str) -> GenerationSettings:
        """A copy with the wished values in place, which come from `source`."""
        limit = self.max_tokens if wishes.max_tokens is None else wishes.max_tokens
        wished = replace(self, sampling=wishes.apply(self.sampling), max_tokens=limit)
        return wished._from(source, wishes.given())

    def taking(self, name: str, other: GenerationSettings) -> GenerationSettings:
        """A copy with one value as `other` has it, and from where `other` has it."""
        if name in SAMPLED:
            taken = replace(self, sampling=replace(self.sampling, **{name: getattr(other.sampling, name)}))
        else:
            taken = replace(self, **{name: getattr(other, name)})
        return taken._from(other.source(name), [name])

    def _from(self, source: str, names: Iterable[str]) -> GenerationSettings:
        return replace(self, sources={**self.sources, **dict.fromkeys(names, source)})

    def shown(self, name: str) -> str:
        """The value of one of `NAMES`, for people."""
        value = self.value(name)
        if value is None:
            return "fresh for each answer" if name == "seed" else "until the context is full"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def describe(self) -> str:
        """All values in one line."""
        return " · ".join(f"{name} {self.shown(name)}" for name in NAMES)

    def changes_from(self, before: GenerationSettings) -> list[str]:
        """What is no longer as before, value by value."""
        changed = [name for name in NAMES if self.value(name) != before.value(name)]
        return [f"{name} {before.shown(name)} → {self.shown(name)}" for name in changed]


def at_start(options: AppOptions, settings: Settings, model: Path | None) -> GenerationSettings:
    """What a model begins with: what was typed wins over the settings file, and that over the defaults."""
    start = of_settings(settings, bundled_guide=model == paths.bundled_model())
    if options.seed is not None:
        start = replace(start, seed=options.seed)._from(TYPED, ["seed"])
    if options.context_policy is not None:
        start = replace(start, context_policy=options.context_policy)._from(TYPED, ["context_policy"])
    start = start.with_wishes(options.sampling, TYPED)
    return replace(start, sources={**start.sources, **options.sampling_sources})


def of_settings(settings: Settings, *, bundled_guide: bool) -> GenerationSettings:
    """What the settings say, for the bundled guide or for any other model."""
    sources = {
        name: "environment" if name in settings.from_environment else "settings"
        for name in NAMES
        if name in settings.from_environment or (name in SETTINGS and getattr(settings, name) != SETTINGS[name].default)
    }
    return GenerationSettings(
        settings.sampling(bundled_guide=bundled_guide),
        max_tokens=settings.max_tokens,
        context_policy=settings.context_policy,
        sources=sources,
    )


def _sampling(sampling: SamplingSettings, name: str, text: str) -> SamplingSettings:
    match name:
        case "temperature":
            return replace(sampling, temperature=_number(name, text))
        case "top_p":
            return replace(sampling, top_p=_number(name, text))
        case "min_p":
            return replace(sampling, min_p=_number(name, text))
    return replace(sampling, top_k=_whole(name, text))


def _policy(text: str) -> ContextPolicy:
    for policy in CONTEXT_POLICIES:
        if policy == text:
            return policy
    raise ValueError(f"context_policy is {text!r}; it must be one of {', '.join(CONTEXT_POLICIES)}")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a number") from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; it must be a whole number") from None
