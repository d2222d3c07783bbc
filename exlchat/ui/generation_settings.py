"""The values that /set changes: how answers are drawn, how long they get, and what they see of the conversation."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.context import CONTEXT_POLICIES, ContextPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.chat.sampling.wishes import SamplingWishes
    from exlchat.engine.sampling_settings import SamplingSettings
    from exlchat.settings import Settings
    from exlchat.ui.options import AppOptions

NAMES = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "context_policy")
LARGEST_SEED = 2**63 - 1
_OFF = ("none", "off")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """`seed` `None` draws a fresh one for each answer; `max_tokens` `None` goes on until the context is full."""

    sampling: SamplingSettings
    seed: int | None = None
    max_tokens: int | None = None
    context_policy: ContextPolicy = "stop"

    def with_value(self, name: str, text: str) -> GenerationSettings:
        """A copy with one value changed, as typed after /set. "none" clears `seed` and `max_tokens`.

        Raises:
            ValueError: unknown name or impossible value, in one line.
        """
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

    def with_wishes(self, wishes: SamplingWishes) -> GenerationSettings:
        """A copy with the wished values in place."""
        limit = self.max_tokens if wishes.max_tokens is None else wishes.max_tokens
        return replace(self, sampling=wishes.apply(self.sampling), max_tokens=limit)

    def describe(self) -> str:
        """All values in one line."""
        sampling = self.sampling
        seed = "fresh for each answer" if self.seed is None else str(self.seed)
        limit = "until the context is full" if self.max_tokens is None else str(self.max_tokens)
        return (
            f"temperature {sampling.temperature:g} · top_k {sampling.top_k} · top_p {sampling.top_p:g} · "
            f"min_p {sampling.min_p:g} · seed {seed} · max_tokens {limit} · "
            f"context_policy {self.context_policy}"
        )


def at_start(options: AppOptions, settings: Settings, model: Path | None) -> GenerationSettings:
    """What a model begins with: what was typed wins over the settings file, and that over the defaults."""
    base = GenerationSettings(
        settings.sampling(bundled_guide=model == paths.bundled_model()),
        seed=options.seed,
        max_tokens=settings.max_tokens,
        context_policy=options.context_policy or settings.context_policy,
    )
    return base.with_wishes(options.sampling)


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
