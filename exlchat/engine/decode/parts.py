"""What a layer of the decode step is made of: who reads the normed row, and what joins the residual behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exlchat.engine.cards.split import placed_on
from exlchat.engine.kv.memory import PageTables
from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import DecoderLayer
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import AttentionRules
from exlchat.ext.exchange import Peers
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import NormCopy, Normed, Residual
from exlchat.ext.settle import Joining, NormedCopy


def attention_rules(spec: ModelSpec, index: int, layer: DecoderLayer) -> AttentionRules:
    """Of a layer, over queries and keys that are normed already."""
    return AttentionRules(
        scale=spec.attention_scale,
        window=spec.windows[index],
        softcap=spec.attention_softcap,
        interleaved=spec.interleaved,
        sinks=None if layer.sinks is None else layer.sinks.float(),
    )


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads one copy of the normed residual: `copy` as a join writes it, `x` as a product reads it.

    Args:
        matrices: that read it in their stored order; none where a layer reads it in the order of the features.
        column: where their outputs begin among those of the layer.
    """

    x: Tensor | Normed
    copy: NormCopy | NormedCopy
    matrices: tuple[PackedMatrix, ...] = ()
    column: int = 0

    @property
    def row(self) -> Tensor:
        """float16 `[rows, width]`, where no product takes what a residual leaves."""
        assert isinstance(self.x, Tensor)
        return self.x

    @property
    def filled(self) -> Tensor:
        """What a join writes, `[rows, stored]`."""
        return self.copy.values if isinstance(self.copy, NormCopy) else self.copy.x

    def first_rows(self, rows: int) -> Reader:
        row, copy = self.filled[:rows], self.copy
        return replace(self, copy=replace(copy, values=row) if isinstance(copy, NormCopy) else replace(copy, x=row))

    def filled_on(self, device: torch.device) -> Reader:
        """The same, filled on another card, from where it has to be sent."""
        row, copy = torch.zeros_like(self.filled, device=device), self.copy
        if isinstance(copy, NormCopy):
            weight = None if copy.weight is None else placed_on(copy.weight, device)
            return replace(self, copy=NormCopy(row, placed_on(copy.scatter, device), weight))
        return replace(self, copy=NormedCopy(row, None if copy.scatter is None else placed_on(copy.scatter, device)))


@dataclass(frozen=True, slots=True)
class FirstReaders:
    """Who reads the residual stream first on a card, of as many rows as there can be, and behind which norm."""

    norm: Norm | None
    readers: list[Reader]


@dataclass(frozen=True, slots=True)
class Together:
    """Where each card has a part of every layer: what one of them has to do with the others.

    Args:
        peers: how it reaches them.
        tables: of all cards.
        logit_ends: of each card the logit behind its last one.
    """

    peers: Peers
    tables: PageTables
    logit_ends: tuple[int, ...]

    @property
    def last(self) -> int:
        """The card that gets all logits and draws."""
        return self.peers.cards - 1

    @property
    def is_last(self) -> bool:
        return self.peers.card == self.last

    @property
    def first_logit(self) -> int:
        """Where its own begin on it: on the last card behind those of all others."""
        return (0, *self.logit_ends)[self.peers.card] if self.is_last else 0


Join = Callable[[Norm | None, list[Reader]], list[Launch]]
"""Adds to the residual stream and norms it for its readers."""


@dataclass(frozen=True, slots=True)
class Half:
    """Attention, or MLP or experts: what reads the normed row, the operations, and what joins the residual behind them.

    Args:
        joining: float32 rows that join apart.
        add: the operation that joins what is computed to a residual, where a product does that itself.
    """

    readers: list[Reader]
    jobs: list[Launch]
    joining: Joining
    add: Callable[[Residual], Launch] | None = None
