"""Widths within a number of bits: against every possible choice, and never worse than one width for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.engine.convert.allocation import Choice, Table, allocate, uniform

WIDTHS = (4, 3, 2)


def table(seed: int, features: int, outputs: int, sizes: tuple[int, ...] = (32, 64)) -> Table:
    draws = np.random.default_rng(seed)
    losses = {}
    for size in sizes:
        groups = -(-features // size)
        weights = draws.lognormal(size=(groups, 1)) * size / 32
        losses[size] = weights * np.array([[1.0, 4.0, 16.0]]) * draws.uniform(0.8, 1.2, (groups, 3))
    return Table(features, outputs, WIDTHS, losses)


def every(table: Table) -> list[Choice]:
    found = []
    for size, losses in table.losses.items():
        for places in itertools.product(range(3), repeat=len(losses)):
            if list(places) == sorted(places):
                loss = float(sum(losses[group, place] for group, place in enumerate(places)))
                choice = Choice(size, places, loss, 0)
                found.append(Choice(size, places, loss, table.bits(table.layout(choice))))
    return found


@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3), part=st.floats(0.0, 1.0))
def test_the_choice_is_near_the_best_there_is(seeds: list[int], part: float) -> None:
    tables = [table(seed, 96, 32 + 32 * (seed % 2)) for seed in seeds]
    choices = [every(one) for one in tables]
    low = sum(min(choice.bits for choice in of_one) for of_one in choices)
    high = sum(max(choice.bits for choice in of_one) for of_one in choices)
    budget = int(low + part * (high - low)) + 10_000
    found = allocate(tables, budget)
    assert found is not None
    assert sum(choice.bits for choice in found) <= budget
    best = min(
        sum(choice.loss for choice in both)
        for both in itertools.product(*choices)
        if sum(choice.bits for choice in both) <= budget
    )
    # One price for all is exact up to a single group.
    group = max(float(losses.max()) for one in tables for losses in one.losses.values())
    assert best - 1e-9 <= sum(choice.loss for choice in found) <= best + group


@given(seed=st.integers(0, 10**6), bits=st.floats(2.3, 4.5))
def test_widths_descend_and_one_width_for_all_is_never_better(seed: int, bits: float) -> None:
    tables = [table(seed + number, 512, 256, (32, 64, 128)) for number in range(4)]
    budget = int(bits * sum(one.features * one.outputs for one in tables))
    found, same = allocate(tables, budget), uniform(tables, budget)
    if found is None:
        assert same is None
        return
    for one, choice in zip(tables, found, strict=True):
        layout = one.layout(choice)
        assert [width for width, _ in layout] == sorted((width for width, _ in layout), reverse=True)
        assert sum(rows for _, rows in layout) == one.features
        assert choice.bits == one.bits(layout)
    assert sum(choice.bits for choice in found) <= budget
    if same is not None:
        assert sum(choice.loss for choice in found) <= sum(choice.loss for choice in same) + 1e-9


def test_more_bits_never_lose_more() -> None:
    tables = [table(number, 512, 256, (32, 64, 128)) for number in range(4)]
    weights = sum(one.features * one.outputs for one in tables)
    lost = []
    for bits in np.arange(2.4, 4.6, 0.1):
        found = allocate(tables, int(bits * weights))
        assert found is not None
        lost.append(sum(choice.loss for choice in found))
    assert lost == sorted(lost, reverse=True)


def test_too_few_bits_are_said() -> None:
    assert allocate([table(1, 96, 32)], 96 * 32) is None


@pytest.mark.parametrize("features", [96, 160])
def test_bits_are_those_of_the_tensors(features: int) -> None:
    """Counted by the format's own formula in another module."""
    from exlchat.engine.formats.sections import Section, stored_bits

    one = table(3, features, 64)
    choice = Choice(64, (1,) * -(-features // 64), 0.0, 0)
    assert one.bits(one.layout(choice)) == stored_bits(features, 64, [Section(3, 1.0, 64)])
