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

_MOST_TOKENS = 256
"""Of a prompt that go through one exchange; more go through several."""


@dataclass(frozen=True, slots=True)
class SumsOverCards:
    """Of one card."""

    kernels: ExchangeKernels
    peers: Peers

    def jobs(self, values: Tensor, first: int) -> list[Launch]:
        """`values`, float16 `[tokens, columns]`, become sums over all cards, by exchanges numbered from `first`."""
        each = max(self.peers.words * 2 // values.shape[1], 1)
        return [
            self.kernels.exchange_sums(part, Exchange(self.peers, number))
            for number, part in enumerate(torch.split(values, each), first)
        ]

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
    return [SumsOverCards(kernels, peers) for peers in make_peers(devices, _words(spec), staged=staged)]


def inbox_bytes(spec: ModelSpec, cards: int) -> int:
    """What a card has for the others' words."""
    return 2 * cards * _words(spec) * 8


def _words(spec: ModelSpec) -> int:
    return max(MAX_ROWS * max(spec.hidden_size, spec.vocab_size), _MOST_TOKENS * spec.hidden_size // 2)


def add_up(sums: Sequence[SumsOverCards], values: Sequence[Tensor]) -> None:
    """`values`, float16 `[tokens, columns]` of each card, become their sums; however many they are.

    Nothing is launched between those that meet: whatever the host waits for afterwards, they come to an end.
    """
    for one, own in zip(sums, values, strict=True):
        with current(own.device):
            jobs = one.jobs(own, 0)
            for job in (*jobs, one.count(len(jobs))):
                job.launch(dependent=False)
