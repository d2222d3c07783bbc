"""Logits as they come, and as nobody wants them; settings with any steps in any order."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from exlchat.engine import SamplingSettings
from exlchat.llm.controls import STEPS

USUAL = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
TIED = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)
EQUAL = st.builds(lambda value, count: [value] * count, st.floats(-9, 9), st.integers(1, 30))
HUGE = st.lists(st.sampled_from([3e38, -3e38, 1e4, -1e4, 65504.0, 0.0, 1.0]), min_size=1, max_size=12)
TINY = st.lists(st.floats(-1e-3, 1e-3), min_size=1, max_size=12)
PEAKED = st.builds(lambda rest: [*rest, 40.0], USUAL)


@st.composite
def barred(draw: st.DrawFn) -> list[float]:
    """Some of them -inf, one at least not."""
    logits = draw(st.one_of(USUAL, TIED))
    gone = draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    return [-math.inf if token in gone else value for token, value in enumerate(logits)]


LOGITS = st.one_of(USUAL, TIED, EQUAL, HUGE, TINY, PEAKED, barred())

VALUES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "smoothing": st.fixed_dictionaries(
        {"smoothing_factor": st.floats(0.01, 3), "smoothing_curve": st.sampled_from([1.0, 1.7, 3.0])}
    ),
    "temperature": st.one_of(
        st.fixed_dictionaries({"temperature": st.floats(0.05, 5)}),
        st.fixed_dictionaries(
            {
                "dynatemp_low": st.floats(0, 1),
                "dynatemp_high": st.floats(1, 3),
                "dynatemp_exponent": st.sampled_from([1.0, 1.5, 2.0]),
            }
        ),
    ),
    "top_n_sigma": st.fixed_dictionaries({"top_n_sigma": st.floats(0.1, 3)}),
    "top_k": st.fixed_dictionaries({"top_k": st.integers(2, 50)}),
    "top_p": st.fixed_dictionaries({"top_p": st.floats(0.01, 0.999)}),
    "top_a": st.fixed_dictionaries({"top_a": st.floats(0.01, 1)}),
    "min_p": st.fixed_dictionaries({"min_p": st.one_of(st.floats(0.001, 1), st.just(1.0))}),
    "tfs": st.fixed_dictionaries({"tfs": st.floats(0.05, 0.99)}),
    "typical": st.fixed_dictionaries({"typical_p": st.floats(0.05, 0.99)}),
    "epsilon_cutoff": st.fixed_dictionaries({"epsilon_cutoff": st.floats(0.001, 1)}),
    "eta_cutoff": st.fixed_dictionaries({"eta_cutoff": st.floats(0.001, 1)}),
    "mirostat": st.fixed_dictionaries({"mirostat_tau": st.floats(0.1, 6)}),
    "xtc": st.fixed_dictionaries({"xtc_probability": st.just(0.5), "xtc_threshold": st.floats(0.01, 0.5)}),
    "skew": st.fixed_dictionaries({"skew": st.sampled_from([-2.0, -0.5, 0.3, 1.0])}),
}
"""Fields that switch a step on."""


@st.composite
def chains(draw: st.DrawFn) -> SamplingSettings:
    """Any steps, in any order."""
    fields: dict[str, Any] = {"order": tuple(draw(st.permutations(STEPS)))}
    for step in draw(st.sets(st.sampled_from(STEPS), max_size=6)):
        fields |= draw(VALUES[step])
    return SamplingSettings(**fields)
