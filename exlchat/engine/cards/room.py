"""Whether a model fits the memory of some cards, and which of its layers then lie where: computed, never tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

# The smallest share of every card's memory over which a model still fits is looked for in so many parts of it.
_PARTS = 1024

Ends = tuple[tuple[int, int], ...]
"""Which cards are used, by their number, and of each the layer behind its last one."""


@dataclass(frozen=True, slots=True)
class PartBytes:
    """What the weights of a model take.

    Args:
        first: the embedding.
        layers: each of them.
        last: the norm behind them and the head.
        again: of the embedding where it is the head, too, and lies on another card.
        movable: of each layer, what may lie in the machine's memory instead; nothing of any unless given.
    """

    first: int = 0
    layers: tuple[int, ...] = ()
    last: int = 0
    again: int = 0
    movable: tuple[int, ...] = ()

    @property
    def all(self) -> int:
        """On one card."""
        return self.first + sum(self.layers) + self.last

    def hosted(self, count: int) -> int:
        """What of so many layers, the last ones, lies in the machine's memory."""
        return sum(self.movable[len(self.movable) - count :])


@dataclass(frozen=True, slots=True)
class Room:
    """Cards in order, for one model.

    Args:
        cards: bytes of each that weights and cache may take.
        weights: of the model; nothing where only the cache is asked about.
        counts: how many layers each card is to have; as it suits unless given.
        even: cards as fast as each other: each gets a share by its memory, so that prompts keep all of them busy.
            Else the first is filled before the next, as it is the faster one.
        hosted: of how many layers, the last ones, the weights lie in the machine's memory as far as they are movable.
            A card with such a layer has room for a copy of the largest of them.
    """

    cards: tuple[int, ...]
    weights: PartBytes = PartBytes()
    counts: tuple[int, ...] | None = None
    even: bool = False
    hosted: int = 0

    @property
    def spare(self) -> int:
        """Bytes that the weights leave, of all cards together."""
        return max(sum(self.cards) - self.weights.all + self.weights.hosted(self.hosted), 0)

    def first(self, count: int) -> Room:
        return replace(self, cards=self.cards[:count])

    def fits(self, cache: Sequence[int | Fraction]) -> bool:
        """Whether there is room for the weights and so many bytes of cache in each layer."""
        if self.counts is not None:
            return self.over(self._asked, cache) is None
        return self._filled(self.cards, cache) is not None

    def ends(self, cache: Sequence[int]) -> Ends | None:
        """Which layers lie where; `None` where there is no room.

        Args:
            cache: bytes of each layer.
        """
        if self.counts is not None:
            return self._asked if self.fits(cache) else None
        found = self._filled(self.cards, cache)
        if found is None or len(found) < 2 or not self.even:
            return found
        low, high = 0, _PARTS
        while high - low > 1:
            middle = (low + high) // 2
            share = self._filled([card * middle // _PARTS for card in self.cards], cache)
            low, high = (low, middle) if share is not None else (middle, high)
        return self._filled([card * high // _PARTS for card in self.cards], cache)

    def over(self, ends: Ends, cache: Sequence[int | Fraction]) -> int | None:
        """The first card that would have to hold more than it can."""
        return next((card for card, used in self.used(ends, cache) if used > self.cards[card]), None)

    def used(self, ends: Ends, cache: Sequence[int | Fraction]) -> list[tuple[int, int | Fraction]]:
        """Bytes of weights and cache on each card of a split."""
        layers = self._layers(cache)
        found, begin = [], 0
        for place, (card, end) in enumerate(ends):
            used: int | Fraction = sum(layers[begin:end]) + self._copy(begin, end)
            used += self.weights.first if place == 0 else 0
            if place == len(ends) - 1:
                used += self.weights.last + (self.weights.again if place else 0)
            found.append((card, used))
            begin = end
        return found

    @property
    def _asked(self) -> Ends:
        assert self.counts is not None
        return tuple((card, end) for card, end in enumerate(accumulate(self.counts)))

    def _layers(self, cache: Sequence[int | Fraction]) -> list[int | Fraction]:
        weights = list(self.weights.layers or (0,) * len(cache))
        for layer in range(len(weights) - self.hosted, len(weights)):
            weights[layer] -= self.weights.movable[layer]
        return [weight + pages for weight, pages in zip(weights, cache, strict=True)]

    def _copy(self, begin: int, end: int) -> int:
        """Bytes that a card with these layers has for copies of what lies in the machine's memory."""
        if not self.hosted or begin == end or end <= len(self.weights.layers) - self.hosted:
            return 0
        return max(self.weights.movable[len(self.weights.movable) - self.hosted :])

    def _filled(self, cards: Sequence[int], cache: Sequence[int | Fraction]) -> Ends | None:
        """One card after the other as full as it gets: where this finds no way, there is none in this order.

        A card that would get nothing is left out.
        """
        layers, weights = self._layers(cache), self.weights
        ends: list[tuple[int, int]] = []
        card = 0
        used: int | Fraction = weights.first
        while card < len(cards) and used > cards[card]:
            card += 1
        layer = 0
        while card < len(cards):
            begin = layer
            while layer < len(layers):
                grown = used + layers[layer]
                if grown > cards[card] - self._copy(begin, layer + 1):
                    break
                used, layer = grown, layer + 1
            used += self._copy(begin, layer)
            if layer == len(layers) and used + weights.last + (weights.again if ends else 0) <= cards[card]:
                return (*ends, (card, layer))
            if layer > begin or (used and not ends):
                ends.append((card, layer))
            card, used = card + 1, 0
        return None


@dataclass(frozen=True, slots=True)
class SharedRoom:
    """Cards that have a part of every layer each.

    Args:
        cards: bytes of each that weights and cache may take.
        weights: bytes of each card's.
        kv_heads: of each, which is its share of the cache.
    """

    cards: tuple[int, ...]
    weights: tuple[int, ...]
    kv_heads: tuple[int, ...]

    @property
    def spare(self) -> int:
        """Bytes for a cache, of all cards together."""
        every = sum(self.kv_heads)
        return min(max(free, 0) * every // heads for free, heads in zip(self._left, self.kv_heads, strict=True))

    def fits(self, cache: Sequence[int | Fraction]) -> bool:
        """Whether there is room for so many bytes of cache in each layer, on all cards together."""
        every = sum(self.kv_heads)
        return all(sum(cache) * heads <= free * every for free, heads in zip(self._left, self.kv_heads, strict=True))

    @property
    def _left(self) -> list[int]:
        return [card - weights for card, weights in zip(self.cards, self.weights, strict=True)]


def counts(ends: Ends) -> tuple[int, ...]:
    """How many layers each card has."""
    before = (0, *(end for _, end in ends))
    return tuple(end - begin for begin, (_, end) in zip(before, ends, strict=False))
