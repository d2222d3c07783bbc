"""Which layers of a decoder lie on which card: consecutive ones, in the order of the cards."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The first card has the embedding, too, the last one the norm behind the layers and the head.

    Args:
        devices: of the cards. The CPU may stand there several times: logical cards, each with tensors of its own.
        ends: of each card the layer behind its last one; the last is the number of layers.
    """

    devices: tuple[torch.device, ...]
    ends: tuple[int, ...]

    @classmethod
    def on(cls, device: torch.device, layers: int) -> LayerSplit:
        """All on one card."""
        return cls((device,), (layers,))

    @property
    def first(self) -> torch.device:
        return self.devices[0]

    @property
    def last(self) -> torch.device:
        return self.devices[-1]

    def layers(self, card: int) -> range:
        return range(self.ends[card - 1] if card else 0, self.ends[card])

    def card(self, layer: int) -> int:
        return next(card for card, end in enumerate(self.ends) if layer < end)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, kernels are launched on this card, which is the current one of this thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
