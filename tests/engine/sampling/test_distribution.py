"""Every step alone, and any chain of them, against the definitions and against transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import probabilities
from exlchat.engine.sampling.distribution import Moment
from exlchat.llm.controls import STEPS
from tests.engine.sampling.definition import ALWAYS, NEVER, defined
from tests.engine.sampling.logits import LOGITS, VALUES, chains

_EDGE = 1e-7
"""Nearer comparisons may fall either way."""


def check(logits: list[float], sampling: SamplingSettings, moment: Moment, *, coin: float) -> None:
    # Which of two logits is the best must show in their shares as well.
    logits = [round(logit, 6) for logit in logits]
    protected = set() if moment.protected is None else set(moment.protected.nonzero().squeeze(1).tolist())
    expected = defined(logits, sampling, coin, moment.surprise, protected)
    assume(expected.edge > _EDGE)
    found = probabilities(torch.tensor(logits, dtype=torch.float64), sampling, moment).tolist()
    assert math.fsum(found) == pytest.approx(1.0)
    assert found == pytest.approx([expected.p.get(token, 0.0) for token in range(len(logits))], abs=1e-8)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_what_was_published(step: str) -> None:
    @settings(max_examples=150)
    @given(LOGITS, VALUES[step], st.booleans(), st.sets(st.integers(0, 39)))
    def compare(logits: list[float], fields: dict[str, Any], acts: bool, protected: set[int]) -> None:
        coin = ALWAYS if acts else NEVER
        guarded = torch.tensor([token in protected for token in range(len(logits))])
        check(logits, SamplingSettings(**fields), Moment(None, coin, guarded), coin=coin)

    compare()


@settings(max_examples=400)
@given(LOGITS, chains(), st.floats(0.1, 12), st.sampled_from([ALWAYS, NEVER]))
def test_any_steps_in_any_order(logits: list[float], sampling: SamplingSettings, surprise: float, coin: float) -> None:
    check(logits, sampling, Moment(surprise, coin), coin=coin)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(0.8, top_k=50, top_p=0.95, min_p=0.02),
        SamplingSettings(top_p=0.97),
        SamplingSettings(top_n_sigma=1.5, typical_p=0.9, tfs=0.95),
        SamplingSettings(eta_cutoff=0.0006, dynatemp_low=0.5, dynatemp_high=1.5, skew=0.2),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.sweep(3)
def test_the_largest_vocabulary(sampling: SamplingSettings, tied: bool) -> None:
    logits = torch.randn(262_144, generator=torch.Generator().manual_seed(8)) * 4
    if tied:
        logits = logits.mul_(2).round_()
    expected = defined(logits.tolist(), sampling).p
    found = probabilities(logits, sampling)
    wanted = torch.zeros(len(logits), dtype=torch.float64)
    wanted[list(expected)] = torch.tensor(list(expected.values()), dtype=torch.float64)
    assert (found - wanted).abs().max() < 1e-9
    assert int((found > 0).sum()) == sum(one > 0 for one in expected.values())


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (SamplingSettings(top_k=3), 3),
        (SamplingSettings(top_p=0.55), 6),
        (SamplingSettings(typical_p=0.55), 6),
        (SamplingSettings(min_p=1.0), 10),
        (SamplingSettings(top_n_sigma=0.5), 10),
        (SamplingSettings(epsilon_cutoff=0.2), 1),
        (SamplingSettings(eta_cutoff=0.5), 10),
        (SamplingSettings(tfs=0.5), 10),
        (
            SamplingSettings(
                top_k=7,
                top_p=0.5,
                order=("top_k", "top_p", *(s for s in STEPS if s[:4] != "top_"), "top_n_sigma", "top_a"),
            ),
            4,
        ),
    ],
)
def test_of_ten_equal_tokens_the_first_stay(sampling: SamplingSettings, kept: int) -> None:
    found = probabilities(torch.full((10,), 0.3), sampling)
    assert found.tolist() == pytest.approx([1 / kept] * kept + [0.0] * (10 - kept))


def test_xtc_leaves_the_last_in_order_of_the_likely_ones() -> None:
    sampling = SamplingSettings(xtc_probability=1.0, xtc_threshold=0.2)
    likely = torch.tensor([0.25, 0.25, 0.05, 0.25, 0.2 - 1e-9]).log()
    assert (probabilities(likely, sampling, Moment(coin=ALWAYS)) > 0).nonzero().squeeze(1).tolist() == [2, 3, 4]
    assert (probabilities(likely, sampling) > 0).all()


@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 1e9])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_no_temperature_makes_probabilities_no_numbers(temperature: float, scale: float) -> None:
    sampling = SamplingSettings(temperature, smoothing_factor=1e9, smoothing_curve=2.0, order=STEPS[1:] + STEPS[:1])
    found = probabilities(torch.tensor([1.0, 3.0, 2.0, -math.inf]) * scale, sampling)
    assert float(found.sum()) == pytest.approx(1.0)
    assert int(found.argmax()) == 1 or temperature > 1
    assert found[3] == 0


WARPERS = [
    (SamplingSettings(0.7), logits_process.TemperatureLogitsWarper(0.7)),
    (SamplingSettings(top_k=20), logits_process.TopKLogitsWarper(20)),
    (SamplingSettings(top_p=0.9), logits_process.TopPLogitsWarper(0.9)),
    (SamplingSettings(top_p=0.2), logits_process.TopPLogitsWarper(0.2)),
    (SamplingSettings(min_p=0.03), logits_process.MinPLogitsWarper(0.03)),
    (SamplingSettings(typical_p=0.9), logits_process.TypicalLogitsWarper(0.9)),
    (SamplingSettings(typical_p=0.3), logits_process.TypicalLogitsWarper(0.3)),
    (SamplingSettings(epsilon_cutoff=0.005), logits_process.EpsilonLogitsWarper(0.005)),
    (SamplingSettings(eta_cutoff=0.01), logits_process.EtaLogitsWarper(0.01)),
]


@pytest.mark.parametrize(("sampling", "warper"), WARPERS, ids=lambda one: type(one).__name__)
def test_transformers_says_the_same(sampling: SamplingSettings, warper: logits_process.LogitsProcessor) -> None:
    for seed in range(20):
        logits = torch.randn(500, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * (0.5 + seed / 5)
        wanted = warper(torch.zeros(1, 0, dtype=torch.int64), logits[None].clone())[0].softmax(-1)
        found = probabilities(logits, sampling)
        assert torch.equal(found > 0, wanted > 0)
        assert (found - wanted).abs().max() < 1e-12
