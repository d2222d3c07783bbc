"""What somebody wants of an answer, over what somebody else wants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.sampling.wishes import SamplingWishes
from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.settings import Settings
from exlchat.ui.generation_settings import GenerationSettings, at_start
from exlchat.ui.options import AppOptions

wishes = st.builds(
    SamplingWishes,
    temperature=st.none() | st.floats(0, 3),
    top_k=st.none() | st.integers(0, 200),
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 9999),
)


@given(wishes, wishes)
def test_the_first_wins_value_by_value(first: SamplingWishes, second: SamplingWishes) -> None:
    both = first.over(second)
    for name in ("temperature", "top_k", "top_p", "min_p", "max_tokens"):
        wanted = getattr(first, name)
        assert getattr(both, name) == (getattr(second, name) if wanted is None else wanted)


@given(wishes)
def test_no_wish_changes_nothing(some: SamplingWishes) -> None:
    assert SamplingWishes().over(some) == some.over(SamplingWishes()) == some


@given(wishes, wishes)
def test_applying_both_is_applying_one_after_the_other(first: SamplingWishes, second: SamplingWishes) -> None:
    base = SamplingSettings(0.7, 3, 0.9, 0.05)
    assert first.over(second).apply(base) == first.apply(second.apply(base))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("inf")}, "temperature is inf; it must be a number"),
        ({"temperature": 10**5000}, "temperature is too large"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": 10**10}, "top_k is too large"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_is_one_short_line(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingWishes(**values)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 120


def test_a_start_goes_by_what_was_typed_then_by_the_settings() -> None:
    settings = Settings(temperature=0.4, top_p=0.9, max_tokens=100)
    typed = AppOptions(None, sampling=SamplingWishes(top_p=0.5, max_tokens=7))
    assert at_start(typed, settings, None) == GenerationSettings(
        SamplingSettings(temperature=0.4, top_p=0.5, min_p=0.05), max_tokens=7
    )
    assert at_start(AppOptions(None), settings, None).max_tokens == 100
