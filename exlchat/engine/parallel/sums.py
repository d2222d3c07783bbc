"""How the sums over cards are computed on GPUs: by kernels that meet each other's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.exchange import Exchange, ExchangeKernels, Peers, make_peers
from exlchat.ext.products import MAX_ROWS

# Of a prompt: as many as one of its graphs takes, and a chunk of a long one in parts.
_MOST_TOKENS = 256


@dataclass(frozen=True, slots=True)
class SumsOverCards:
    """Of one card."""

    kernels: ExchangeKernels
    peers: Peers

    def job(self, values: Tensor, number: int) -> Launch:
        """`values` become their sums over all cards: see `ExchangeKernels.exchange_sums`."""
        return self.kernels.exchange_sums(values, Exchange(self.peers, number))

    def count(self, exchanges: int) -> Launch:
        return self.kernels.count_exchanges(self.peers, exchanges)


def sums_over_cards(
    kernels: ExchangeKernels, spec: ModelSpec, devices: Sequence[torch.device], *, staged: bool
) -> list[SumsOverCards]:
    """Of each card.

    Args:
        staged: what cards tell each other goes through the machine's memory; so it does anyway where the driver says
            that they do not reach each other.
    """
    staged = not kernels.reach(devices) or staged
    words = max(MAX_ROWS * max(spec.hidden_size, spec.vocab_size), _MOST_TOKENS * spec.hidden_size // 2)
    return [SumsOverCards(kernels, peers) for peers in make_peers(devices, words, staged=staged)]


def add_up(sums: Sequence[SumsOverCards], values: Sequence[Tensor]) -> None:
    """`values`, float16 `[tokens, columns]` of each card, become their sums; however many they are.

    Those that meet are launched one behind the other: whatever the host waits for afterwards, they come to an end.
    """
    each = max(sums[0].peers.words * 2 // values[0].shape[1], 1)
    for first in range(0, len(values[0]), each):
        for one, own in zip(sums, values, strict=True):
            with current(own.device):
                one.job(own[first : first + each], 0).launch(dependent=False)
                one.count(1).launch(dependent=False)
