"""Prefix sums against a plain list."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from exlchat.ui.tui.widgets.transcript_heights import HeightIndex

HEIGHTS = st.lists(st.integers(1, 50), max_size=40)


@given(HEIGHTS, HEIGHTS, st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), max_size=20))
def test_like_a_plain_list(first: list[int], more: list[int], changes: list[tuple[int, int]]) -> None:
    index = HeightIndex(first)
    for height in more:
        index.append(height)
    plain = first + more
    for number, height in changes if plain else []:
        position = number % len(plain)
        assert index.set(position, height) == height - plain[position]
        plain[position] = height
    starts = [0, *accumulate(plain)]
    assert len(index) == len(plain)
    assert [index.start(position) for position in range(len(plain) + 1)] == starts
    assert index.total == sum(plain)
    expected = [(position, line) for position, height in enumerate(plain) for line in range(height)]
    assert [index.find(line) for line in range(index.total)] == expected
