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
        host_layers: of how many layers the weights lie in the machine's memory, where cards read them slowly; of as few
            as it takes unless given, of all where there are not so many.
        tensor_parallel: how many cards compute every layer together, each a part of it.
    """

    cards: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    reserve: tuple[float, ...] = ()
    host_layers: int | None = None
    tensor_parallel: int = 1


ANY_CARDS = CardWishes()
