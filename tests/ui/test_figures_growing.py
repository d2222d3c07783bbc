"""Rates of a growing answer, and numbers as bars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.app.panels.figures import GrowingFigures
from exlchat.ui.render.sparkline import bars


def test_tokens_are_counted_in_intervals_of_half_a_second_that_are_over() -> None:
    growing = GrowingFigures()
    growing.begin(10, 90.0)
    assert growing.recent(100.0) == []
    growing.add(1, 100.0)
    growing.add(4, 100.4)
    growing.add(3, 100.6)
    assert growing.recent(100.45) == []
    assert growing.recent(100.7) == [10.0]
    # Nothing came in the third.
    growing.add(2, 101.6)
    assert growing.recent(102.1) == [10.0, 6.0, 0.0, 4.0]
    assert growing.tokens == 10
    growing.begin(0, 90.0)
    assert growing.recent(103.0) == []


def test_only_half_a_minute_is_kept() -> None:
    growing = GrowingFigures()
    growing.begin(0, 90.0)
    for tenth in range(3_000):
        growing.add(1, 50.0 + tenth / 10)
    rates = growing.recent(350.0)
    assert len(rates) == 60
    assert rates[5:-5] == pytest.approx([10.0] * 50, abs=2.1)
    assert len(growing._recent) <= 61


def test_bars_are_as_high_as_their_share_of_the_largest() -> None:
    assert bars([1, 2, 4], 10) == "▃▅█"
    assert bars([100, 101], 10) == "██"
    assert bars([0, 0], 10) == "▁▁"
    assert bars([], 10) == ""
    assert bars([9, 1, 2, 4], 3) == "▃▅█"
    assert bars([1], 0) == ""


@given(st.lists(st.floats(0, 1e12)), st.integers(0, 50))
def test_there_is_a_bar_for_each_of_the_last_values(values: list[float], cells: int) -> None:
    assert len(bars(values, cells)) == min(len(values), cells)
