"""What may be said about how a token is drawn: each control with its range, what switches it off, and a sentence.

Checks, files, panels and documentation are made from these. No torch: the floors above import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["Temperature", "Truncation", "Repetition", "Bias", "Guidance", "Order"]
ControlKind = Literal["number", "whole", "texts", "tokens", "biases", "order"]
TokenName = str | int
"""A token: its id, or a text that is exactly one token of the model."""


@dataclass(frozen=True, slots=True)
class Control:
    """One value of `SamplingSettings`.

    Args:
        group: of those that belong together.
        kind: `texts` are strings, `tokens` are `TokenName`s, `biases` are pairs of one and a number, `order` are steps.
        help: what it does, in a sentence.
        off: the value that switches it off, or at which it changes nothing.
        low, high: what a number may be.
        above: `low` itself is not possible.
        leader: the control that has to be on for this one to mean anything.
        usual: what to begin with when it is switched on.
    """

    group: Group
    kind: ControlKind
    help: str
    off: Any
    low: float = 0.0
    high: float = math.inf
    above: bool = False
    leader: str | None = None
    usual: Any = None

    @property
    def range(self) -> str:
        """What a number may be, behind "it must be"."""
        what = "a whole number" if self.kind == "whole" else "a number"
        least = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        if math.isinf(self.high):
            return f"{what}, {least}"
        return (
            f"{what} above {self.low:g}, up to {self.high:g}"
            if self.above
            else f"{what} from {self.low:g} to {self.high:g}"
        )


DRY_BREAKERS = ("\n", ":", '"', "*")
"""Those of its author (see `engine/sampling/repetition.py`)."""

STEPS = (
    "smoothing",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "top_a",
    "min_p",
    "tfs",
    "typical",
    "epsilon_cutoff",
    "eta_cutoff",
    "mirostat",
    "xtc",
    "skew",
)
"""The steps of a distribution in the order that holds unless another is given. Before all of them come, in this order:
guidance, penalties, DRY, no_repeat_ngram, logit_bias, banned_tokens; and what may not come at all (grammars)."""

CONTROLS: Mapping[str, Control] = {
    "temperature": Control(
        "Temperature", "number", "How freely tokens are drawn; 0 always takes the likeliest.", 1.0, usual=0.7
    ),
    "top_k": Control("Truncation", "whole", "Draw from so many likeliest tokens; 0 is all.", 0, usual=40),
    "top_p": Control(
        "Truncation",
        "number",
        "Draw from the likeliest tokens that sum to this; 1 is all.",
        1.0,
        high=1,
        above=True,
        usual=0.9,
    ),
    "min_p": Control(
        "Truncation",
        "number",
        "Drop tokens below this fraction of the likeliest one; 0 drops none.",
        0.0,
        high=1,
        usual=0.05,
    ),
    "top_a": Control(
        "Truncation",
        "number",
        "Drop tokens below this times the square of the best probability; 0 drops none.",
        0.0,
        high=1,
        usual=0.2,
    ),
    "top_n_sigma": Control(
        "Truncation",
        "number",
        "Keep logits within so many standard deviations of the best; 0 keeps all.",
        0.0,
        usual=1.0,
    ),
    "typical_p": Control(
        "Truncation",
        "number",
        "Draw from the tokens whose surprise is most ordinary, summing to this; 1 is all.",
        1.0,
        high=1,
        above=True,
        usual=0.9,
    ),
    "tfs": Control(
        "Truncation",
        "number",
        "Cut the tail where the curve of probabilities flattens; 1 cuts nothing.",
        1.0,
        high=1,
        above=True,
        usual=0.95,
    ),
    "epsilon_cutoff": Control(
        "Truncation", "number", "Drop tokens below this probability; 0 drops none.", 0.0, high=1, usual=0.0003
    ),
    "eta_cutoff": Control(
        "Truncation",
        "number",
        "As epsilon_cutoff, but gentler where the model is unsure; 0 drops none.",
        0.0,
        high=1,
        usual=0.0006,
    ),
    "mirostat_tau": Control(
        "Truncation",
        "number",
        "Steer towards this much surprise a token, in bits (Mirostat 2); 0 is off.",
        0.0,
        usual=5.0,
    ),
    "mirostat_eta": Control(
        "Truncation", "number", "How fast Mirostat follows.", 0.1, high=1, above=True, leader="mirostat_tau"
    ),
    "xtc_probability": Control(
        "Truncation",
        "number",
        "How often all likely tokens but the least of them are dropped (XTC); 0 is never.",
        0.0,
        high=1,
        usual=0.5,
    ),
    "xtc_threshold": Control(
        "Truncation",
        "number",
        "From which probability XTC calls a token likely.",
        0.1,
        high=0.5,
        above=True,
        leader="xtc_probability",
    ),
    "dynatemp_low": Control(
        "Temperature",
        "number",
        "The temperature where the model is sure, with dynatemp_high.",
        0.0,
        leader="dynatemp_high",
    ),
    "dynatemp_high": Control(
        "Temperature",
        "number",
        "The temperature where the model is unsure, in place of temperature; 0 is off.",
        0.0,
        usual=1.5,
    ),
    "dynatemp_exponent": Control(
        "Temperature",
        "number",
        "How the dynamic temperature grows with unsureness.",
        1.0,
        above=True,
        leader="dynatemp_high",
    ),
    "smoothing_factor": Control(
        "Temperature",
        "number",
        "Bends the logits by a parabola below the best (quadratic sampling); 0 is off.",
        0.0,
        usual=0.3,
    ),
    "smoothing_curve": Control(
        "Temperature",
        "number",
        "Steepens that parabola by a cubic part; 1 adds none.",
        1.0,
        low=1,
        high=3,
        leader="smoothing_factor",
    ),
    "skew": Control(
        "Temperature",
        "number",
        "Turns the draw towards unlikely (above 0) or likely (below) tokens; 0 is off.",
        0.0,
        low=-5,
        high=5,
        usual=0.2,
    ),
    "repetition_penalty": Control(
        "Repetition",
        "number",
        "Divides the logits of what was said before; 1 is off.",
        1.0,
        above=True,
        high=10,
        usual=1.1,
    ),
    "frequency_penalty": Control(
        "Repetition",
        "number",
        "Taken off a logit for each time that its token was said; 0 is off.",
        0.0,
        low=-10,
        high=10,
        usual=0.2,
    ),
    "presence_penalty": Control(
        "Repetition",
        "number",
        "Taken off the logit of a token that was said at all; 0 is off.",
        0.0,
        low=-10,
        high=10,
        usual=0.2,
    ),
    "penalty_range": Control(
        "Repetition", "whole", "How many last tokens the three penalties look at; 0 is all.", 0, high=10**7
    ),
    "penalty_decay": Control(
        "Repetition",
        "whole",
        "Over how many tokens before that range the penalties fade; 0 is none.",
        0,
        high=10**7,
        leader="penalty_range",
    ),
    "dry_multiplier": Control(
        "Repetition",
        "number",
        "Penalty of a token that would lengthen a repeated passage (DRY); 0 is off.",
        0.0,
        high=100,
        usual=0.8,
    ),
    "dry_base": Control(
        "Repetition",
        "number",
        "By what DRY grows with each token of the passage.",
        1.75,
        low=1,
        high=10,
        leader="dry_multiplier",
    ),
    "dry_allowed_length": Control(
        "Repetition",
        "whole",
        "How long a repeated passage may be before DRY begins.",
        2,
        low=1,
        high=1000,
        leader="dry_multiplier",
    ),
    "dry_range": Control(
        "Repetition", "whole", "How many last tokens DRY looks at; 0 is all.", 0, high=10**7, leader="dry_multiplier"
    ),
    "dry_breakers": Control(
        "Repetition",
        "texts",
        "Passages do not go on over tokens that hold one of these.",
        DRY_BREAKERS,
        leader="dry_multiplier",
    ),
    "no_repeat_ngram": Control(
        "Repetition", "whole", "Never say so many tokens in a row twice; 0 is off.", 0, high=1000, usual=8
    ),
    "logit_bias": Control("Bias", "biases", "Added to the logits of single tokens.", (), low=-1000, high=1000),
    "banned_tokens": Control("Bias", "tokens", "Tokens that never come.", ()),
    "guidance_scale": Control(
        "Guidance",
        "number",
        "How far to lean away from the negative prompt (CFG), at twice the work; 1 is off.",
        1.0,
        low=-20,
        high=20,
        usual=1.5,
    ),
    "order": Control("Order", "order", "The steps of the distribution, the first to the last.", STEPS),
}
"""By the name of the field."""

STEP_CONTROLS: Mapping[str, str] = {
    "smoothing": "smoothing_factor",
    "typical": "typical_p",
    "mirostat": "mirostat_tau",
    "xtc": "xtc_probability",
    **{step: step for step in STEPS if step in CONTROLS},
}
"""Step -> the control that switches it on."""
