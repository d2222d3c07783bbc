"""What is wished for where a model may lie on several cards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardWishes:
    """What is not wished for is computed.

    Args:
        cards: which ones, in this order, numbered as the driver shows them to this program; as few as it takes, the
            fastest first, unless given.
        split: how many layers each has.
        reserve: GiB that are left free on each, or one number for all.
    """

    cards: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    reserve: tuple[float, ...] = ()


ANY_CARDS = CardWishes()
