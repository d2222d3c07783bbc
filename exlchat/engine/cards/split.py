"""What of a decoder lies on which card: consecutive layers, in the order of the cards, or a part of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The first card has the embedding, too, the last one the norm behind the layers and the head.

    Args:
        devices: of the cards. The CPU may stand there several times: logical cards, each with tensors of its own.
        ends: of each card the layer behind its last one; the last is the number of layers.
        staged: what goes from card to card goes through the machine's memory, because some of them do not really reach
            each other.
        hosted: of how many layers, the last ones, the weights lie in the machine's memory: of a mixture its experts.
        kv_heads: of each card, where all of them compute every layer together (`parallel`), each with the embedding
            and a part of the head; nothing where layers lie on one card each.
    """

    devices: tuple[torch.device, ...]
    ends: tuple[int, ...]
    staged: bool = False
    hosted: int = 0
    kv_heads: tuple[int, ...] = ()

    @classmethod
    def on(cls, device: torch.device, layers: int) -> LayerSplit:
        """All on one card."""
        return cls((device,), (layers,))

    @classmethod
    def in_parts(
        cls, devices: tuple[torch.device, ...], layers: int, kv_heads: tuple[int, ...], *, staged: bool = False
    ) -> LayerSplit:
        """A part of every layer on each card."""
        return cls(devices, (layers,) * len(devices), staged, kv_heads=kv_heads)

    @property
    def first(self) -> torch.device:
        return self.devices[0]

    @property
    def last(self) -> torch.device:
        return self.devices[-1]

    @property
    def together(self) -> bool:
        """Whether each card has a part of every layer."""
        return bool(self.kv_heads)

    def layers(self, card: int) -> range:
        return range(self.ends[card - 1] if card and not self.together else 0, self.ends[card])

    def is_hosted(self, layer: int) -> bool:
        return layer >= self.ends[-1] - self.hosted

    def card(self, layer: int) -> int:
        return next(card for card, end in enumerate(self.ends) if layer < end)

    def carry(self, source: Tensor, target: Tensor) -> None:
        """Enqueues a copy to where another card waits for it; through the machine's memory it waits for both."""
        target.copy_(source.to("cpu") if self.staged else source, non_blocking=not self.staged)

    def moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        """The same on another card, which waits for it."""
        return tensor.to("cpu").to(device) if self.staged else tensor.to(device, non_blocking=True)


def reach_each_other(devices: Sequence[torch.device]) -> bool:
    """Whether what is sent from each card to each other one arrives: drivers say so of some that garble it.

    Tried with a megabyte, there and back.
    """
    sent = torch.randint(2**31, (1 << 18,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    for first, second in permutations(dict.fromkeys(devices), 2):
        there = sent.to(first).to(second)
        if not (torch.equal(there.to("cpu"), sent) and torch.equal(there.to(first).to("cpu"), sent)):
            return False
    return True


def placed_on(tensor: Tensor, device: torch.device) -> Tensor:
    """The same there; from another card by way of the machine's memory, as some garble what they send each other."""
    return tensor if tensor.device == device else tensor.to("cpu").to(device)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, kernels are launched on this card, which is the current one of this thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
