"""Which widths each matrix gets, so that all together lose least in a number of bits."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exlchat.engine.convert.rounding import Layout

_Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """What one matrix may be, and what each of that loses.

    Args:
        features, outputs: its sizes, outputs as stored.
        widths: in descending order.
        losses: by size of group, `[groups, widths]`, in natural units of divergence a token.
    """

    features: int
    outputs: int
    widths: tuple[int, ...]
    losses: Mapping[int, _Losses]

    def bits(self, layout: Layout) -> int:
        """On disk: codes, scale indices, group table and order."""
        codes = sum(bits * rows for bits, rows in layout) * self.outputs
        return codes + len(layout) * (4 * self.outputs + 48) + 32 * self.features

    def rows(self, size: int) -> NDArray[np.int64]:
        """Of each group of this size."""
        starts = np.arange(0, self.features, size)
        return np.minimum(self.features - starts, size)

    @property
    def narrowest(self) -> Choice:
        """The narrowest width everywhere, in the groups that take the least bits."""
        size = max(self.losses)
        return _choice(self, size, np.full(len(self.losses[size]), len(self.widths) - 1))

    def layout(self, choice: Choice) -> Layout:
        return [
            (self.widths[place], int(rows)) for place, rows in zip(choice.places, self.rows(choice.size), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Choice:
    """For one matrix the size of its groups, and for each group the place of its width in `Table.widths`."""

    size: int
    places: tuple[int, ...]
    loss: float
    bits: int


def allocate(tables: Sequence[Table], budget: int) -> list[Choice] | None:
    """The choice for each matrix that loses least in `budget` bits; `None` where the least widths take more.

    Widths of a matrix never rise from group to group, which the format wants and the order of rows suggests. What is
    left when all change at one price is spent on single groups, and the whole is never worse than one width for all.
    """
    cheapest = [table.narrowest for table in tables]
    if _bits(cheapest) > budget:
        return None
    spent = _spend(tables, _at_best_price(tables, cheapest, budget), budget)
    same = _spend(tables, uniform(tables, budget) or cheapest, budget)
    return min(spent, same, key=_loss)


def _at_best_price(tables: Sequence[Table], cheapest: list[Choice], budget: int) -> list[Choice]:
    """The last choices in the budget among those that lose least for some price of a bit.

    Between two of them, one in the budget and one beyond it, lies what loses least at the price at which both cost the
    same; where that costs no less than they do, nothing lies between (Shoham and Gersho 1988).
    """
    fits, beyond = cheapest, _at_price(tables, 0.0)
    if _bits(beyond) <= budget:
        return beyond
    while (saved := _loss(fits) - _loss(beyond)) > 0:
        price = saved / (_bits(beyond) - _bits(fits))
        between = _at_price(tables, price)
        if _loss(between) + price * _bits(between) >= (_loss(fits) + price * _bits(fits)) * (1 - 1e-12):
            break
        if _bits(between) <= budget:
            fits = between
        else:
            beyond = between
    return fits


def _bits(choices: Sequence[Choice]) -> int:
    return sum(choice.bits for choice in choices)


def _loss(choices: Sequence[Choice]) -> float:
    return sum(choice.loss for choice in choices)


def uniform(tables: Sequence[Table], budget: int) -> list[Choice] | None:
    """One width and one size of groups for all, the one that loses least in the budget; `None` where none fits."""
    found = []
    for width in sorted({width for table in tables for width in table.widths}):
        for size in sorted(tables[0].losses):
            if any(width not in table.widths or size not in table.losses for table in tables):
                continue
            choices = [
                _choice(table, size, np.full(len(table.losses[size]), table.widths.index(width))) for table in tables
            ]
            if _bits(choices) <= budget:
                found.append(choices)
    return min(found, key=_loss, default=None)


def _choice(table: Table, size: int, places: NDArray[np.int64]) -> Choice:
    losses = table.losses[size]
    layout = [(table.widths[place], int(rows)) for place, rows in zip(places, table.rows(size), strict=True)]
    loss = float(losses[np.arange(len(places)), places].sum())
    return Choice(size, tuple(int(place) for place in places), loss, table.bits(layout))


def _at_price(tables: Sequence[Table], price: float) -> list[Choice]:
    return [
        min(
            (_cut(table, size, price) for size in table.losses),
            key=lambda choice: choice.loss + price * choice.bits,
        )
        for table in tables
    ]


def _cut(table: Table, size: int, price: float) -> Choice:
    """Where widths fall, by dynamic programming over groups: the least of loss and price times bits."""
    rows, losses = table.rows(size), table.losses[size]
    cost = losses + price * table.outputs * rows[:, None] * np.array(table.widths)
    sums = np.vstack([np.zeros(len(table.widths)), cost.cumsum(0)])
    groups = len(rows)
    # least[g]: of the first g groups at the widths so far; where each width begins is kept to walk back.
    least = np.full(groups + 1, np.inf)
    least[0] = 0.0
    begins = []
    for place in range(len(table.widths)):
        gain = least - sums[:, place]
        best = np.minimum.accumulate(gain)
        # The first group from which on this width is best, for each end.
        at = np.maximum.accumulate(np.where(gain == best, np.arange(groups + 1), 0))
        begins.append(at)
        least = best + sums[:, place]
    places = np.empty(groups, dtype=np.int64)
    end = groups
    for place in range(len(table.widths) - 1, -1, -1):
        begin = int(begins[place][end])
        places[begin:end] = place
        end = begin
    return _choice(table, size, places)


def _spend(tables: Sequence[Table], choices: Sequence[Choice], budget: int) -> list[Choice]:
    """Raises single groups to the next width as long as that fits, what saves most for its bits first."""
    left = budget - _bits(choices)
    places = [list(choice.places) for choice in choices]
    waiting: list[tuple[float, int, int, int]] = []

    def offer(number: int, group: int) -> None:
        place = places[number][group]
        table, size = tables[number], choices[number].size
        if place == 0 or (group > 0 and places[number][group - 1] >= place):
            return
        saved = float(table.losses[size][group, place] - table.losses[size][group, place - 1])
        bits = _step(table, size, group, place)
        if saved > 0:
            heapq.heappush(waiting, (-saved / bits, number, group, place))

    for number, of_matrix in enumerate(places):
        for group in range(len(of_matrix)):
            offer(number, group)
    while waiting:
        _, number, group, place = heapq.heappop(waiting)
        bits = _step(tables[number], choices[number].size, group, place)
        if places[number][group] != place or bits > left:
            continue
        places[number][group] -= 1
        left -= bits
        offer(number, group)
        if group + 1 < len(places[number]):
            offer(number, group + 1)
    return [
        _choice(table, choice.size, np.array(of_matrix))
        for table, choice, of_matrix in zip(tables, choices, places, strict=True)
    ]


def _step(table: Table, size: int, group: int, place: int) -> int:
    """Bits that the next greater width takes more."""
    rows = int(table.rows(size)[group])
    return rows * table.outputs * (table.widths[place - 1] - table.widths[place])
