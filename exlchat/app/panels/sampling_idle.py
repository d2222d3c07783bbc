"""Which controls of sampling change nothing as the others are, and in which order those that are on work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.llm.controls import CONTROLS

if TYPE_CHECKING:
    from exlchat.llm.sampling import SamplingSettings

_BEFORE = {
    "guidance_scale": "guidance",
    "repetition_penalty": "penalties",
    "frequency_penalty": "penalties",
    "presence_penalty": "penalties",
    "dry_multiplier": "DRY",
    "no_repeat_ngram": "no_repeat_ngram",
    "logit_bias": "logit_bias",
    "banned_tokens": "banned_tokens",
}
"""Control -> what it does before the steps of the distribution, in the order in which that is done."""
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_DRAWN = ("Temperature", "Truncation", "Order")
"""The groups of what says how a token is drawn from the distribution."""


def order_line(sampling: SamplingSettings) -> str:
    """What is on, in the order in which it works."""
    before = dict.fromkeys(stage for name, stage in _BEFORE.items() if sampling.is_on(name))
    last = "the likeliest token" if sampling.greedy else "draw"
    return f"order: {' → '.join([*before, *sampling.steps, last])}"


def idle_reason(sampling: SamplingSettings, name: str) -> str:
    """Why a value changes nothing whatever it is, to go on behind "while"; empty if it may change something."""
    if name != "seed" and name not in CONTROLS:
        return ""
    decides = "temperature" if sampling.temperature == 0 else "top_k" if sampling.greedy else ""
    if decides and name != decides and (name == "seed" or CONTROLS[name].group in _DRAWN):
        return "the most likely token is always taken"
    return "" if name == "seed" else _switched_off_by(sampling, name)


def _switched_off_by(sampling: SamplingSettings, name: str) -> str:
    leader = CONTROLS[name].leader
    penalties = any(sampling.is_on(one) for one in _PENALTIES)
    reasons = {
        f"{leader} is off": leader is not None and not sampling.is_on(leader),
        f"{', '.join(_PENALTIES)} are off": name in ("penalty_range", "penalty_decay") and not penalties,
        "dynatemp_high takes its place": name == "temperature" and sampling.dynatemp_high > 0,
        "fewer than two steps are on": name == "order" and len(sampling.steps) < 2,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
