"""The sampler without a GPU: what the kernels compute, by its reference, and what is refused before they run."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch

from exlchat.engine.sampling import Sampler, probabilities
from exlchat.ext.library import Library
from exlchat.ext.sampling import NOT_NUMBERS, RING_SLOTS, SamplerKernels, SamplerState, TokenRing, c_draw
from exlchat.llm.sampling import SamplingSettings
from tests.ext.never_called import NeverCalled
from tests.ext.reference_sampling import draw, kept_weights, scale_logits, weights

SETTINGS = [
    SamplingSettings(),
    SamplingSettings(0.7, top_k=40),
    SamplingSettings(1.3, top_p=0.9),
    SamplingSettings(1.0, min_p=0.05),
    SamplingSettings(0.8, top_k=100, top_p=0.95, min_p=0.02),
]


def some_logits(seed: int, vocab: int = 3000) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def kept(logits: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    steepness = math.log2(math.e) / settings.temperature
    deepest = -math.log2(settings.min_p) if settings.min_p else math.inf
    return kept_weights(logits, steepness, top_k=settings.top_k, top_p=settings.top_p, deepest=deepest)


@pytest.mark.parametrize("settings", SETTINGS)
def test_integer_weights_are_the_distribution(settings: SamplingSettings) -> None:
    for seed in range(5):
        logits = some_logits(seed)
        found, wanted = kept(logits, settings), probabilities(logits, settings)
        assert torch.equal(found > 0, wanted > 0)
        assert (found / found.sum() - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_seed_draws_the_same_tokens_in_integers_and_in_floats(settings: SamplingSettings) -> None:
    sampler = Sampler(settings, seed=2**40 + 5)
    for index in range(100):
        logits = some_logits(index, 500)
        token = sampler.draw(logits)
        assert token == draw(kept(logits, settings), 2**40 + 5, index)
        sampler.accept(token)


def test_of_equal_logits_the_lower_ids_stay() -> None:
    logits = torch.tensor([0.0, -0.0, 0.0, 0.0, -1.0])
    assert (kept_weights(logits, 1.0, top_k=2) > 0).tolist() == [True, True, False, False, False]
    assert (kept_weights(logits, 1.0, top_p=0.6) > 0).tolist() == [True, True, True, False, False]


def test_the_largest_vocabulary_still_fits_into_64_bits() -> None:
    assert int(weights(torch.zeros(2**18), 1.0).sum()) == 2**58


def test_the_structure_says_what_the_settings_say() -> None:
    found = c_draw(temperature=2.0, top_k=7, top_p=0.25, min_p=0.125, seed=-1, index=3, sequence=2**32 + 9)
    assert (found.top_k, found.top_p, found.deepest, found.greedy) == (7, 0.25, 3.0, 0)
    assert (found.seed, found.index, found.sequence) == (2**64 - 1, 3, 9)
    assert found.octaves_per_logit == pytest.approx(0.5 / math.log(2))


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (1.0, 1)])
def test_greedy_is_marked(temperature: float, top_k: int) -> None:
    assert c_draw(temperature=temperature, top_k=top_k, top_p=1.0, min_p=0.0, seed=0, index=0, sequence=0).greedy == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_any_temperature_leaves_finite_steepness(temperature: float) -> None:
    found = c_draw(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=0, index=0, sequence=0)
    assert 0 < found.octaves_per_logit < math.inf


def test_a_ring_gives_each_word_to_its_own_sequence_number() -> None:
    ring = TokenRing(pinned=False)
    assert all(ring.read(sequence) is None for sequence in (0, 1, RING_SLOTS, 2**31))
    ring.words[5] = 5 << 32 | NOT_NUMBERS << 24 | 262143
    assert ring.read(5) == (262143, NOT_NUMBERS)
    assert ring.read(5 + RING_SLOTS) is None
    high = 2**32 - RING_SLOTS + 7  # a word whose highest bit is set
    ring.words[7] = (high << 32 | 3) - 2**64
    assert ring.read(high) == (3, 0)


@pytest.mark.parametrize(
    ("logits", "token", "position", "words"),
    [
        (torch.zeros(2, 5), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), "one row"),
        (torch.zeros(327681), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), "one row of 1 to"),
        (torch.zeros(5).half(), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), "logits is"),
        (torch.zeros(10)[::2], torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), "not contiguous"),
        (torch.zeros(5), torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), "token is torch.int32"),
        (torch.zeros(5), torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int32), "position is"),
        (torch.zeros(5), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), "logits is on the cpu"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    logits: torch.Tensor, token: torch.Tensor, position: torch.Tensor, words: str
) -> None:
    kernels = SamplerKernels(cast(Library, NeverCalled()))
    with pytest.raises(ValueError) as error:
        kernels.sample(logits, SamplerState(torch.device("cpu")), token=token, position=position)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scale": 0.5}, "logits is on the cpu"),
        ({"softcap": 30.0}, "logits is on the cpu"),
        ({}, "neither a scale nor a softcap"),
        ({"softcap": -1.0}, "softcap -1.0"),
        ({"scale": math.nan}, "scale is nan"),
        ({"logits": torch.zeros(1, 8).half(), "scale": 0.5}, "logits is torch.float16"),
        ({"logits": torch.zeros(9, 8), "scale": 0.5}, "9 rows of 8"),
    ],
)
def test_scaled_logits_are_checked(given: dict[str, Any], words: str) -> None:
    kernels = SamplerKernels(cast(Library, NeverCalled()))
    with pytest.raises(ValueError) as error:
        kernels.scale_logits(**{"logits": torch.zeros(1, 8), **given})
    assert words in str(error.value)


def test_logits_are_scaled_before_the_softcap() -> None:
    found = scale_logits(torch.tensor([-1e6, -8.0, 0.0, 1e-3, 8.0, 1e6]), scale=0.5, softcap=4.0)
    wanted = [-4.0, 4 * math.tanh(-1), 0.0, 4 * math.tanh(1.25e-4), 4 * math.tanh(1), 4.0]
    assert found.tolist() == pytest.approx(wanted, rel=1e-6)
