"""Sampling against the definitions, written again in plain Python floats, and against the chi-square test."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import Sampler, probabilities

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)


def by_definition(logits: list[float], settings: SamplingSettings) -> list[float]:
    """temperature, then top-k, then the smallest prefix that reaches p, then min-p; lower ids win ties."""
    best = max(logits)
    weights = [math.exp((logit - best) / settings.temperature) for logit in logits]
    p = {index: weight / math.fsum(weights) for index, weight in enumerate(weights)}
    ranked = sorted(p, key=lambda index: (-p[index], index))
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    total = math.fsum(p[index] for index in ranked)
    kept: list[int] = []
    for index in ranked:
        if settings.top_p < 1.0 and math.fsum(p[other] for other in kept) >= settings.top_p * total:
            break
        kept.append(index)
    kept = [index for index in kept if p[index] >= settings.min_p * p[ranked[0]]]
    total = math.fsum(p[index] for index in kept)
    return [p[index] / total if index in kept else 0.0 for index in range(len(logits))]


def following(sampler: Sampler, logits: torch.Tensor) -> int:
    """The next token, which then stands."""
    token = sampler.draw(logits)
    sampler.accept(token)
    return token


@given(
    LOGITS,
    st.floats(0.05, 5.0),
    st.integers(0, 50).filter(lambda count: count != 1),  # which draws nothing
    st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_probabilities_are_those_of_the_definitions(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    settings = SamplingSettings(temperature, top_k, top_p, min_p)
    found = probabilities(torch.tensor(logits), settings).tolist()
    expected = by_definition(logits, settings)
    # A token exactly on the edge of p may fall either way by rounding; its mass then differs, never more.
    different = [index for index in range(len(logits)) if (found[index] > 0) != (expected[index] > 0)]
    # Of two that are alike but for a last bit, either may be the one that stays.
    alike = len(different) == 2 and abs(logits[different[0]] - logits[different[1]]) < 1e-9
    assert len(different) <= 1 or alike
    if not different:
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(1.0),
        SamplingSettings(0.6, top_k=5),
        SamplingSettings(1.3, top_p=0.8),
        SamplingSettings(min_p=0.1),
    ],
)
def test_draws_follow_the_distribution(settings: SamplingSettings) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0, float("-inf")])
    p = probabilities(logits, settings)
    draws = 4000
    sampler = Sampler(settings, seed=11)
    counts = torch.bincount(torch.tensor([following(sampler, logits) for _ in range(draws)]), minlength=8)
    assert (counts[p == 0] == 0).all()
    expected = p[p > 0] * draws
    chi_square = ((counts[p > 0] - expected) ** 2 / expected).sum().item()
    # 99.9 % quantile of chi-square with at most 6 degrees of freedom: 22.46.
    assert chi_square < 22.46


def test_the_same_seed_draws_the_same_tokens() -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3))

    def draws(seed: int) -> list[int]:
        sampler = Sampler(SamplingSettings(1.0), seed)
        return [following(sampler, logits) for _ in range(20)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)


@pytest.mark.parametrize("settings", [SamplingSettings(0.0), SamplingSettings(1.0, top_k=1)])
def test_greedy_takes_the_first_of_the_best(settings: SamplingSettings) -> None:
    assert Sampler(settings, 0).draw(torch.tensor([1.0, 3.0, 3.0, 2.0])) == 1


def test_one_candidate_is_drawn_whatever_the_temperature() -> None:
    logits = torch.full((9,), float("-inf"))
    logits[4] = -80.0
    assert Sampler(SamplingSettings(2.0, top_p=0.5, min_p=0.5), 1).draw(logits) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [[1.0, float("nan")], [float("inf"), 1.0], [float("-inf"), float("-inf")]])
def test_logits_that_are_no_numbers_are_refused(logits: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="not numbers"):
        Sampler(SamplingSettings(temperature), 0).draw(torch.tensor(logits))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 2.0),
    ],
)
def test_values_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingSettings(**{field: value})
