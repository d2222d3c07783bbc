"""Guesses from the conversation itself: what followed when its last tokens stood there before."""

from __future__ import annotations

from collections.abc import Sequence

# Runs that are looked for, the longest first. Shorter ones than 3 tokens are found in any text and say little.
_LENGTHS = (5, 3)


class NgramDrafter:
    """A `drafting.Drafter` (prompt lookup: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).

    It remembers where each run of tokens stood last, and reads only what is new of a context that grows.
    """

    def __init__(self) -> None:
        self._known: list[int] = []
        self._places: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in _LENGTHS)

    def guess(self, context: Sequence[int], most: int) -> list[int]:
        self._read(context)
        for length, places in zip(_LENGTHS, self._places, strict=True):
            place = places.get(tuple(context[-length:])) if len(context) > length else None
            if place is not None:
                return list(context[place : place + most])
        return []

    def _read(self, context: Sequence[int]) -> None:
        """Takes in what is new but for the last token, whose runs end here and have nothing behind them."""
        known = self._known
        if len(context) < len(known) or context[max(len(known) - 64, 0) : len(known)] != known[-64:]:
            known.clear()
            for places in self._places:
                places.clear()
        for end in range(max(len(known), 1), len(context)):
            for length, places in zip(_LENGTHS, self._places, strict=True):
                if end >= length:
                    places[tuple(context[end - length : end])] = end
        known.extend(context[len(known) :])
