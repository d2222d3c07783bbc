"""How a token is drawn, as one immutable, checked value. No torch: the floors above build these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from exlchat.llm.controls import CONTROLS, DRY_BREAKERS, STEP_CONTROLS, STEPS, Control, TokenName

_MOST_ENTRIES = 10_000
_LARGEST = 10**9
"""More means nothing, and very much more does not fit where it goes."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Each default switches its step off; `controls.CONTROLS` says what each does and may be.

    Formulas and sources stand where they are computed, in `exlchat.engine.sampling`. Lists are taken as tuples.

    Args:
        temperature: 0 takes the most likely token, whatever the steps of the distribution say.
        order: of the steps of the distribution, each of `controls.STEPS` once.

    Raises:
        ValueError: a value out of range, or two that contradict each other, in one line.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_a: float = 0.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    tfs: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    mirostat_tau: float = 0.0
    mirostat_eta: float = 0.1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_low: float = 0.0
    dynatemp_high: float = 0.0
    dynatemp_exponent: float = 1.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    skew: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_range: int = 0
    penalty_decay: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_breakers: tuple[str, ...] = DRY_BREAKERS
    no_repeat_ngram: int = 0
    logit_bias: tuple[tuple[TokenName, float], ...] = ()
    banned_tokens: tuple[TokenName, ...] = ()
    guidance_scale: float = 1.0
    order: tuple[str, ...] = STEPS

    def __post_init__(self) -> None:
        for name, control in CONTROLS.items():
            value, off = getattr(self, name), control.off
            if type(value) is type(off) and value == off:
                # Most are; records of thousands of answers are read at once.
                continue
            # A frozen value: what came as lists, as from JSON, becomes what it is declared as.
            object.__setattr__(self, name, checked_value(name, value))
        self._check_together()

    @property
    def greedy(self) -> bool:
        """Whether the draw is deterministic whatever the seed."""
        return self.temperature == 0.0 or self.top_k == 1

    def is_on(self, name: str) -> bool:
        """Whether a value changes anything by itself, or by the one that leads it."""
        control = CONTROLS[name]
        if control.leader is not None:
            return self.is_on(control.leader)
        return bool(getattr(self, name) != control.off)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of the distribution that are on, in their order; none of a greedy draw."""
        if self.greedy:
            return ()
        on = [step for step in self.order if self.is_on(STEP_CONTROLS[step])]
        if self.dynatemp_high > 0.0 and "temperature" not in on:
            on = [step for step in self.order if step in on or step == "temperature"]
        return tuple(on)

    @property
    def looks_back(self) -> bool:
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier", "no_repeat_ngram")
        return any(self.is_on(name) for name in names)

    def _check_together(self) -> None:
        if self.dynatemp_low > self.dynatemp_high:
            raise ValueError(
                f"dynatemp_low is {self.dynatemp_low:g} and dynatemp_high {self.dynatemp_high:g}; "
                "the high one must be at least as high, set it first"
            )
        if self.temperature == 0.0 and self.dynatemp_high > 0.0:
            raise ValueError(
                "temperature 0 takes the likeliest token, and dynatemp_high wants to draw; set one of them back "
                "(temperature 1, or dynatemp_high 0)"
            )
        if self.no_repeat_ngram == 1:
            raise ValueError(
                "no_repeat_ngram is 1, which would allow each token once; it must be 0 (off), or 2 or more"
            )


def checked_value(name: str, value: object) -> Any:
    """The value of one control as `SamplingSettings` holds it, whatever the others are.

    Raises:
        ValueError: it cannot be, in one line.
    """
    control = CONTROLS[name]
    match control.kind:
        case "number" | "whole":
            _check_number(name, value, control)
            return value
        case "texts":
            return _texts(name, value)
        case "tokens":
            return _tokens(name, value)
        case "biases":
            return _biases(name, value)
        case "order":
            return _order(name, value)


def order_with_last(named: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """The usual order with some steps at its end, in the order in which they are named.

    Raises:
        ValueError: no such step, or one twice.
    """
    _check_steps("order", named)
    return (*(step for step in STEPS if step not in named), *named)


def _check_number(name: str, value: object, control: Control) -> None:
    whole = control.kind == "whole"
    good = not isinstance(value, bool) and isinstance(value, int if whole else (int, float))
    if good:
        assert isinstance(value, int | float)
        if _LARGEST < abs(value) < math.inf:
            # Not said: it may have thousands of digits.
            raise ValueError(f"{name} is too large; it must be at most {min(_LARGEST, control.high):,}")
        above = value > control.low if control.above else value >= control.low
        good = above and value <= control.high and abs(value) < math.inf
    if not good:
        off = "" if control.leader else f" ({control.off:g} {'changes nothing' if name == 'temperature' else 'is off'})"
        raise ValueError(f"{name} is {_shown(value)}; it must be {control.range}{off}")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    found = _listed(name, value)
    if not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"{name} holds what is no text; it must be a list of texts, none of them empty")
    return found


def _tokens(name: str, value: Any) -> tuple[TokenName, ...]:
    found = _listed(name, value)
    for one in found:
        _check_token(name, one)
    return found


def _biases(name: str, value: Any) -> tuple[tuple[TokenName, float], ...]:
    control, found = CONTROLS[name], []
    for one in _listed(name, value):
        if isinstance(one, str) or not isinstance(one, list | tuple) or len(one) != 2:
            raise ValueError(f"{name} holds {_shown(one)}; it must be pairs of a token and a number")
        token, bias = one
        _check_token(name, token)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not control.low <= bias <= control.high:
            raise ValueError(f"{name} of {_shown(token)} is {_shown(bias)}; it must be {control.range}")
        found.append((token, float(bias)))
    if len({token for token, _ in found}) < len(found):
        raise ValueError(f"{name} names a token twice")
    return tuple(found)


def _order(name: str, value: Any) -> tuple[str, ...]:
    found = _listed(name, value)
    _check_steps(name, found)
    if len(found) < len(STEPS):
        missing = ", ".join(step for step in STEPS if step not in found)
        raise ValueError(f"{name} leaves out {missing}; it must name every step once")
    return found


def _check_steps(name: str, steps: Any) -> None:
    for step in steps:
        if step not in STEPS:
            raise ValueError(f"{name} names {_shown(step)}; the steps are {', '.join(STEPS)}")
    if len(set(steps)) < len(steps):
        raise ValueError(f"{name} names a step twice")


def _check_token(name: str, token: object) -> None:
    whole = isinstance(token, int) and not isinstance(token, bool) and token >= 0
    if not whole and not (isinstance(token, str) and token):
        raise ValueError(f"{name} names {_shown(token)}; a token is its id, or its text")


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ValueError(f"{name} is {_shown(value)}; it must be a list")
    if len(value) > _MOST_ENTRIES:
        raise ValueError(f"{name} has {len(value):,} entries; it must have at most {_MOST_ENTRIES:,}")
    return tuple(value)


def _shown(value: object) -> str:
    # A whole number may have more digits than Python writes.
    text = "too large" if isinstance(value, int) and abs(value) >= 10**18 else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


GREEDY = SamplingSettings(temperature=0.0)
