"""Penalties, DRY, n-grams and guidance against loops that are written from their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import NothingAllowedError, NotNumbersError, Sampler, TokenTexts

VOCAB = 8
TEXTS = ["a", "b", ":", "c\n", "d", "e", "f", "<end>"]
BREAKERS = (2, 3, 7)
LOGITS = st.lists(st.floats(-20, 20), min_size=VOCAB, max_size=VOCAB)
CONTEXTS = st.lists(st.integers(0, VOCAB - 1), max_size=60)
LOOPS = st.builds(lambda passage, times, rest: passage * times + rest, CONTEXTS, st.integers(1, 12), CONTEXTS)


def texts() -> TokenTexts:
    return TokenTexts(VOCAB, TEXTS.__getitem__, lambda text: [TEXTS.index(text)], {7})


def adjusted(logits: list[float], context: list[int], sampling: SamplingSettings, **given: Any) -> list[float]:
    sampler = Sampler(sampling, 0, texts())
    sampler.begin(context)
    return sampler.adjusted(torch.tensor(logits, dtype=torch.float64), **given).tolist()


@settings(deadline=None)
@given(
    LOGITS,
    CONTEXTS,
    st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_penalties_are_those_of_a_walk_from_the_newest_token(
    logits: list[float], context: list[int], penalties: tuple[float, float, float], reach: tuple[int, int]
) -> None:
    (r, f, q), (span, decay) = penalties, reach
    found = adjusted(
        logits,
        context,
        SamplingSettings(
            repetition_penalty=r, frequency_penalty=f, presence_penalty=q, penalty_range=span, penalty_decay=decay
        ),
    )
    expected, seen = list(logits), set()
    for distance, token in enumerate(reversed(context)):
        if span and distance >= span + decay:
            break
        weight = 1 - (distance - span) / decay if span and distance > span else 1.0
        if token not in seen:
            seen.add(token)
            rho = r + (1 - r) * (1 - weight)
            expected[token] = expected[token] / rho if expected[token] > 0 else expected[token] * rho
            expected[token] -= q * weight
        expected[token] -= f * weight
    assert found == pytest.approx(expected, abs=1e-9)


def repeated(context: list[int], span: int) -> dict[int, int]:
    """Of each token that would lengthen a passage, how long that is."""
    window = context[-span:] if span else context
    longest: dict[int, int] = {}
    if not window or window[-1] in BREAKERS:
        return {}
    for place in range(len(window) - 1):
        length = 0
        while length < 50 and length <= place:
            token = window[place - length]
            if token != window[len(window) - 1 - length] or token in BREAKERS:
                break
            length += 1
        following = window[place + 1]
        if length and following not in BREAKERS:
            longest[following] = max(longest.get(following, 0), length)
    return longest


@settings(max_examples=300)
@given(
    LOGITS,
    st.one_of(CONTEXTS, LOOPS),
    st.tuples(st.floats(0.1, 3), st.floats(1, 3)),
    st.tuples(st.integers(1, 5), st.integers(0, 80)),
)
def test_dry_is_what_a_naive_search_finds(
    logits: list[float], context: list[int], powers: tuple[float, float], lengths: tuple[int, int]
) -> None:
    (multiplier, base), (allowed, span) = powers, lengths
    sampling = SamplingSettings(
        dry_multiplier=multiplier,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_range=span,
        dry_breakers=(":", "\n"),
    )
    penalties = {
        token: multiplier * base ** (n - allowed) for token, n in repeated(context, span).items() if n >= allowed
    }
    expected = [value - penalties.get(token, 0.0) for token, value in enumerate(logits)]
    assert adjusted(logits, context, sampling) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_dry_looks_at_fifty_tokens_of_a_passage() -> None:
    sampling = SamplingSettings(dry_multiplier=1.0, dry_base=1.1, dry_allowed_length=1)
    assert adjusted([0.0] * VOCAB, [0] * 300, sampling)[0] == pytest.approx(-(1.1**49))


@settings(deadline=None)
@given(LOGITS, st.one_of(CONTEXTS, LOOPS), st.integers(2, 6))
def test_no_ngram_is_completed_twice(logits: list[float], context: list[int], size: int) -> None:
    barred = {
        context[place + size - 1]
        for place in range(len(context) - size + 1)
        if context[place : place + size - 1] == context[len(context) - size + 1 :]
    }
    if len(barred) == VOCAB:
        with pytest.raises(NothingAllowedError):
            adjusted(logits, context, SamplingSettings(no_repeat_ngram=size))
        return
    expected = [-math.inf if token in barred else value for token, value in enumerate(logits)]
    assert adjusted(logits, context, SamplingSettings(no_repeat_ngram=size)) == expected
    if context:
        processor = logits_process.NoRepeatNGramLogitsProcessor(size)
        theirs = processor(torch.tensor([context]), torch.tensor([logits], dtype=torch.float64))
        assert theirs[0].tolist() == expected


@settings(deadline=None)
@given(LOGITS, CONTEXTS.filter(bool), st.floats(0.5, 2))
def test_transformers_has_the_same_repetition_penalty(logits: list[float], context: list[int], r: float) -> None:
    processor = logits_process.RepetitionPenaltyLogitsProcessor(r)
    theirs = processor(torch.tensor([context]), torch.tensor([logits], dtype=torch.float64))
    found = adjusted(logits, context, SamplingSettings(repetition_penalty=r))
    assert found == pytest.approx(theirs[0].tolist(), abs=1e-9)


@pytest.mark.parametrize("value", [1e-300, 10.0])
def test_no_repetition_penalty_makes_a_logit_infinite(value: float) -> None:
    found = adjusted([3e38, *[-3e38] * (VOCAB - 1)], [0, 1], SamplingSettings(repetition_penalty=value))
    assert all(math.isfinite(one) for one in found)


@given(LOGITS, LOGITS, st.floats(-20, 20).filter(lambda scale: scale != 1.0))
def test_guidance_leans_away_from_the_negative_prompt(logits: list[float], other: list[float], scale: float) -> None:
    def log_softmax(values: list[float]) -> list[float]:
        total = max(values) + math.log(math.fsum(math.exp(value - max(values)) for value in values))
        return [value - total for value in values]

    expected = [
        scale * one + (1 - scale) * two for one, two in zip(log_softmax(logits), log_softmax(other), strict=True)
    ]
    sampling = SamplingSettings(guidance_scale=scale)
    found = adjusted(logits, [], sampling, guidance=torch.tensor(other, dtype=torch.float64))
    assert found == pytest.approx(expected, abs=1e-9)


def test_guidance_makes_nothing_possible_that_the_model_bars() -> None:
    logits, other = [-math.inf, 1.0, -math.inf] + [0.0] * 5, [-math.inf, -math.inf, 1.0] + [0.0] * 5
    found = adjusted(logits, [], SamplingSettings(guidance_scale=1.5), guidance=torch.tensor(other))
    assert [token for token, value in enumerate(found) if value == -math.inf] == [0, 1, 2]
    with pytest.raises(NotNumbersError):
        adjusted([0.0] * VOCAB, [], SamplingSettings(guidance_scale=2), guidance=torch.tensor([math.nan] * VOCAB))


def test_everything_before_the_distribution_comes_in_its_order() -> None:
    """A penalty divides what guidance made; biases are added behind; bars stand whatever was added."""
    sampling = SamplingSettings(
        guidance_scale=2.0,
        repetition_penalty=2.0,
        dry_multiplier=1.0,
        dry_allowed_length=1,
        no_repeat_ngram=3,
        logit_bias=(("b", 500.0), (5, 7.0)),
        banned_tokens=(6, "f"),
    )
    context = [0, 1, 4, 0, 5, 0, 1]
    found = adjusted(
        [0.0] * VOCAB,
        context,
        sampling,
        guidance=torch.zeros(VOCAB),
        allowed=torch.tensor([True] * 7 + [False]),
        barred={2},
    )
    each = -math.log(VOCAB)
    # "a b" is followed by 4: barred as a 3-gram, and by DRY 1.75 ** 1 less before that.
    assert found == pytest.approx(
        [2 * each, 2 * each + 500, -math.inf, each, -math.inf, 2 * each + 7, -math.inf, -math.inf]
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("fields", "given", "words"),
    [
        ({"no_repeat_ngram": 2}, {}, "no_repeat_ngram bars every one; loosen it"),
        ({"banned_tokens": tuple(range(VOCAB))}, {}, "banned_tokens bars every one"),
        ({}, {"allowed": torch.zeros(VOCAB, dtype=torch.bool)}, "what the answer has to be bars every one"),
        ({"banned_tokens": (0,)}, {"barred": range(1, VOCAB)}, "banned_tokens and 7 tokens barred at this place"),
    ],
)
def test_where_nothing_is_allowed_it_is_said_why(
    temperature: float, fields: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    sampler = Sampler(SamplingSettings(temperature, **fields), 0, texts())
    sampler.begin([x for token in range(VOCAB) for x in (0, token)] + [0])
    with pytest.raises(NothingAllowedError) as error:
        sampler.draw(torch.zeros(VOCAB), **given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
