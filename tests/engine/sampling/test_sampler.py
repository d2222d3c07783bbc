"""Draws of one answer: their distribution, what is taken back, Mirostat, and the time that they take."""

from __future__ import annotations

import math
import time
from collections import Counter

import pytest
import torch

from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import Sampler, TokenTexts
from exlchat.llm.controls import STEPS
from tests.engine.sampling.definition import ALWAYS, defined, fits

SOME = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0, -math.inf, 1.5]


def of_guide_size() -> TokenTexts:
    """4,096 tokens, of which every hundredth holds a newline."""
    return TokenTexts(4096, lambda token: "\n" if token % 100 == 0 else "x", lambda _text: [1], {1})


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(0.7, top_k=5, min_p=0.05),
        SamplingSettings(typical_p=0.8, skew=0.5),
        SamplingSettings(tfs=0.9, dynatemp_low=0.5, dynatemp_high=2),
        SamplingSettings(smoothing_factor=0.4, smoothing_curve=1.5, top_a=0.1),
        SamplingSettings(top_n_sigma=1.2, eta_cutoff=0.05, order=STEPS[::-1]),
        SamplingSettings(1.4, top_p=0.8, order=(*(step for step in STEPS if step != "temperature"), "temperature")),
    ],
)
@pytest.mark.sweep(3)
def test_draws_follow_the_definition(sampling: SamplingSettings) -> None:
    sampler, counts = Sampler(sampling, seed=5), Counter[int]()
    for _ in range(4000):
        token = sampler.draw(torch.tensor(SOME))
        sampler.accept(token)
        counts[token] += 1
    assert fits(counts, defined(SOME, sampling).p)


def test_xtc_acts_as_often_as_it_says() -> None:
    sampling = SamplingSettings(xtc_probability=0.3, xtc_threshold=0.12)
    texts = TokenTexts(len(SOME), lambda token: "\n" if token == 1 else "x", lambda _text: [0], {7})
    counts = Counter(Sampler(sampling, seed, texts).draw(torch.tensor(SOME)) for seed in range(6000))
    left = defined(SOME, SamplingSettings()).p
    excluded = defined(SOME, sampling, ALWAYS, protected={1, 7}).p
    assert excluded.keys() < left.keys()
    assert fits(counts, {token: 0.7 * one + 0.3 * excluded.get(token, 0.0) for token, one in left.items()})


def test_until_a_token_is_accepted_the_draw_is_the_same() -> None:
    sampler = Sampler(SamplingSettings(), 3)
    assert len({sampler.draw(torch.zeros(1000)) for _ in range(5)}) == 1
    first = sampler.draw(torch.zeros(1000))
    sampler.accept(first)
    assert sampler.draw(torch.zeros(1000)) != first


def test_a_token_taken_back_is_drawn_anew_among_the_others() -> None:
    """Token 0 is drawn, refused, and barred: another comes as often as its share of what is left says."""
    counts = Counter[int]()
    for seed in range(4000):
        sampler = Sampler(SamplingSettings(), seed)
        if sampler.draw(torch.tensor(SOME)) != 0:
            continue
        sampler.accept(0)
        sampler.back(1)
        counts[sampler.draw(torch.tensor(SOME), barred={0})] += 1
    assert sum(counts.values()) > 1200
    assert fits(counts, defined([-math.inf, *SOME[1:]], SamplingSettings()).p)


def test_places_behind_one_that_was_taken_back_are_drawn_anew_too() -> None:
    """Answers that begin "0 1" begin again without the 0. What follows must know nothing of the 1 before."""
    logits, counts = [1.0, 1.0, 0.0], Counter[int]()
    for seed in range(5000):
        sampler = Sampler(SamplingSettings(), seed)
        for wanted in (0, 1):
            if sampler.draw(torch.tensor(logits)) != wanted:
                break
            sampler.accept(wanted)
        else:
            sampler.back(2)
            sampler.accept(sampler.draw(torch.tensor(logits), barred={0}))
            counts[sampler.draw(torch.tensor(logits))] += 1
    assert sum(counts.values()) > 700
    assert fits(counts, defined(logits, SamplingSettings()).p)


def test_back_restores_context_index_and_mirostat() -> None:
    sampling = SamplingSettings(mirostat_tau=2.0, mirostat_eta=0.5, repetition_penalty=1.5, dry_multiplier=1.0)
    sampler = Sampler(sampling, 1)
    sampler.begin([1, 2, 3, 1, 2])
    states = []
    for token in (3, None, None, 0, None):
        states.append((sampler.index, sampler.surprise, sampler.adjusted(torch.tensor(SOME)).tolist()))
        drawn = sampler.draw(torch.tensor(SOME))
        sampler.accept(drawn if token is None else token)
    assert len({surprise for _, surprise, _ in states}) > 2
    for count, state in zip((1, 1, 3), (states[4], states[3], states[0]), strict=True):
        sampler.back(count)
        assert (sampler.index, sampler.surprise, sampler.adjusted(torch.tensor(SOME)).tolist()) == state
    assert sampler.attempt == 3
    with pytest.raises(ValueError, match="the answer has 0"):
        sampler.back(1)
    sampler.back(0)
    assert sampler.attempt == 4
    sampler.begin([1])
    assert (sampler.attempt, sampler.surprise) == (0, 4.0)


def test_a_forced_token_moves_only_the_context() -> None:
    sampler = Sampler(SamplingSettings(mirostat_tau=2.0, repetition_penalty=2.0), 1)
    token = sampler.draw(torch.tensor(SOME))
    sampler.accept(3 if token != 3 else 4)
    assert sampler.surprise == 4.0
    sampler.accept(0)
    assert sampler.surprise == 4.0
    assert sampler.adjusted(torch.tensor(SOME))[0] == 1.0


@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_steers_the_surprise_to_tau(tau: float) -> None:
    """Zipf's law over 1,000 tokens: 7.5 bits, were nothing done."""
    logits = [-math.log(rank) for rank in range(1, 1001)]
    sampling = SamplingSettings(mirostat_tau=tau, mirostat_eta=0.1)
    sampler, mu, surprises = Sampler(sampling, 9), 2 * tau, []
    for place in range(2500):
        token = sampler.draw(torch.tensor(logits, dtype=torch.float64))
        if place < 20:
            surprise = -math.log2(defined(logits, sampling, mu=mu).steered[token])
            mu -= 0.1 * (surprise - tau)
        before = sampler.surprise
        sampler.accept(token)
        if place < 20:
            assert sampler.surprise == pytest.approx(mu)
        surprises.append(tau - (sampler.surprise - before) / 0.1)
    assert sum(surprises[100:]) / 2400 == pytest.approx(tau, abs=0.05)
    assert sum(1 / rank for rank in range(1, 1001)) > 7


def test_mirostat_counts_what_later_steps_leave_by_what_it_left_itself() -> None:
    logits = [3.0, 2.9, 1.0, 0.0]
    sampling = SamplingSettings(mirostat_tau=1.0, xtc_probability=1.0, xtc_threshold=0.2)
    sampler = Sampler(sampling, 4)
    token = sampler.draw(torch.tensor(logits, dtype=torch.float64))
    steered = defined(logits, sampling, ALWAYS).steered
    assert token == 1
    assert steered.keys() == {0, 1}
    sampler.accept(token)
    assert sampler.surprise == pytest.approx(2.0 - 0.1 * (-math.log2(steered[1]) - 1.0))


def test_penalties_change_what_is_drawn_as_the_answer_grows() -> None:
    sampler = Sampler(SamplingSettings(0.0, presence_penalty=1.0), 0)
    logits, tokens = torch.tensor([1.0, 0.9, 0.8]), []
    for _ in range(4):
        tokens.append(sampler.draw(logits))
        sampler.accept(tokens[-1])
    assert tokens == [0, 1, 2, 0]


def test_a_long_context_does_not_slow_the_draws() -> None:
    """Looking back at 30,000 tokens takes under 1 ms on an idle core; the bound leaves room for busy ones."""
    sampling = SamplingSettings(repetition_penalty=1.1, frequency_penalty=0.1, dry_multiplier=0.8, top_p=0.9)
    sampler = Sampler(sampling, 1, of_guide_size())
    generator = torch.Generator().manual_seed(1)
    sampler.begin(torch.randint(2, 300, (30_000,), generator=generator).tolist())
    logits, times = torch.randn(4096, generator=generator), []
    for token in range(50):
        begin = time.perf_counter()
        sampler.adjusted(logits)
        times.append(time.perf_counter() - begin)
        sampler.accept(token)
    assert min(times) < 0.01
