"""What somebody wants of an answer, value by value: typed, of a preset, or of a persona."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from exlchat.chat import answer_option_values
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.answer_options import AnswerOptions, DraftChoice
from exlchat.chat.presets.control_values import from_plain, shown
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS, TokenName
from exlchat.llm.sampling import SamplingSettings

ALL_ELSE_OFF = "all else off"
_ALWAYS = ("temperature", "top_k", "top_p", "min_p")
"""Told by their numbers even if they are off."""
_OFF = SamplingSettings()
WISHED = (*CONTROLS, *ANSWER_OPTIONS, "max_tokens")
"""What can be wished for."""
_LARGEST = 10**9
"""More means nothing, and very much more does not fit where it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
    """`None` leaves a value to whatever holds without it; the others are of `SamplingSettings` and `AnswerOptions`.

    Args:
        order: all steps, or those that come last; kept as all of them.
        max_tokens: the longest answer, in tokens.
        others_off: switch off every control that is not wished for, in the place of leaving it.

    Raises:
        ValueError: a value out of range, or two that contradict each other, in one line.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_a: float | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    tfs: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_low: float | None = None
    dynatemp_high: float | None = None
    dynatemp_exponent: float | None = None
    smoothing_factor: float | None = None
    smoothing_curve: float | None = None
    skew: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    penalty_range: int | None = None
    penalty_decay: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_range: int | None = None
    dry_breakers: tuple[str, ...] | None = None
    no_repeat_ngram: int | None = None
    logit_bias: tuple[tuple[TokenName, float], ...] | None = None
    banned_tokens: tuple[TokenName, ...] | None = None
    guidance_scale: float | None = None
    order: tuple[str, ...] | None = None
    stop: tuple[str, ...] | None = None
    ban: tuple[str, ...] | None = None
    min_tokens: int | None = None
    begin: str | None = None
    constraint: Constraint | None = None
    think: bool | None = None
    thinking_budget: int | None = None
    negative: str | None = None
    heal: bool | None = None
    stop_repeating: bool | None = None
    logprobs: int | None = None
    draft: DraftChoice | None = None
    max_tokens: int | None = None
    others_off: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            if self.max_tokens < 1:
                raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")
            if self.max_tokens > _LARGEST:
                # Not said: it may have thousands of digits.
                raise ValueError(f"max_tokens is too large; it must be at most {_LARGEST:,}")
        self.speak(AnswerOptions())
        values = {name: from_plain(name, value) for name, value in self._controls().items()}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.dynatemp_high is None and not self.others_off:
            # Whether it is too high is seen when the other is known.
            values.pop("dynatemp_low", None)
        SamplingSettings(**values)

    def given(self) -> dict[str, Any]:
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return self._controls() | self._spoken() | limit

    def decided(self) -> dict[str, Any]:
        """The values that are no longer left to anything else, by name: those wished for, and those switched off."""
        off = {name: getattr(_OFF, name) for name in CONTROLS} if self.others_off else {}
        return off | self.given()

    def apply(self, base: SamplingSettings) -> SamplingSettings:
        """`base` with the wished values in place; `max_tokens` is no part of it.

        Raises:
            ValueError: a wish contradicts what `base` has and nobody wished away, in one line.
        """
        return replace(SamplingSettings() if self.others_off else base, **self._controls())

    def speak(self, base: AnswerOptions) -> AnswerOptions:
        """`base` with the wished values in place, of what an answer is asked to be.

        Raises:
            ValueError: a value out of range, in one line.
        """
        return replace(base, **self._spoken())

    def describe(self) -> str:
        """The wished values in one line; empty when there are none."""
        wished = self._controls()
        off = [name for name in wished if name not in _ALWAYS and CONTROLS[name].leader is None]
        off = [name for name in off if wished[name] == CONTROLS[name].off]
        parts = [f"{name} {shown(name, value)}" for name, value in wished.items() if name not in off]
        parts += [f"off: {', '.join(off)}"] if off else []
        limit = [] if self.max_tokens is None else [f"max_tokens {self.max_tokens}"]
        parts += [f"{name} {answer_option_values.shown(name, value)}" for name, value in self._spoken().items()]
        return " · ".join([*parts, *([ALL_ELSE_OFF] if self.others_off else []), *limit])

    def _controls(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in CONTROLS}
        return {name: value for name, value in named.items() if value is not None}

    def _spoken(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ANSWER_OPTIONS}
        return {name: value for name, value in named.items() if value is not None}
