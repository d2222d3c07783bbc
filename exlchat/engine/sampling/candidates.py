"""The tokens that are left at a step of the distribution, and their order."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


class Candidates:
    """Tokens that may still be drawn, at least one; no step changes them, each makes new ones.

    Their order is fixed before the first step: larger adjusted logit first, of equal ones the lower id. It is made when
    a step asks for it, for the fewer tokens are left by then the less it costs.

    Args:
        adjusted: float64 `[vocab]`, the logits before the first step.
        ids: int64 `[n]`, ascending, or in that order if `ranked`.
        logits: float64 `[n]`, as the steps have made them, finite.
    """

    __slots__ = ("_adjusted", "_p", "ids", "logits", "ranked")

    def __init__(self, adjusted: Tensor, ids: Tensor, logits: Tensor, *, ranked: bool = False) -> None:
        self._adjusted = adjusted
        self._p: Tensor | None = None
        self.ids = ids
        self.logits = logits
        self.ranked = ranked

    @classmethod
    def of(cls, adjusted: Tensor) -> Candidates:
        """All tokens whose logit is not -inf, of float64 `[vocab]`."""
        ids = _all_ids(len(adjusted), adjusted.device)
        if bool(adjusted.min() > -math.inf):
            return cls(adjusted, ids, adjusted)
        ids = ids[adjusted > -math.inf]
        return cls(adjusted, ids, adjusted[ids])

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def p(self) -> Tensor:
        """Their probabilities, float64 `[n]`, which sum to 1."""
        if self._p is None:
            self._p = torch.softmax(self.logits, dim=-1)
        return self._p

    @property
    def entropy(self) -> float:
        """Of their probabilities, in nats."""
        return float(torch.special.entr(self.p).sum())

    def with_logits(self, logits: Tensor) -> Candidates:
        """The same tokens with other logits, finite float64 `[n]`."""
        return Candidates(self._adjusted, self.ids, logits, ranked=self.ranked)

    def keep(self, which: Tensor) -> Candidates:
        """Those where bool `[n]` is true."""
        if bool(which.all()):
            return self
        return self.at(which.nonzero().squeeze(1))

    def keep_or_best(self, which: Tensor) -> Candidates:
        """Those where bool `[n]` is true, and in any case the likeliest one."""
        if not bool(which.any()):
            return self.at(self.p.argmax().unsqueeze(0))
        return self.keep(which)

    def at(self, places: Tensor) -> Candidates:
        """Those at int64 places, ascending."""
        return Candidates(self._adjusted, self.ids[places], self.logits[places], ranked=self.ranked)

    def first(self, count: int) -> Candidates:
        """So many of the first ones, if there are as many. Of ranked ones these are the likeliest."""
        return Candidates(self._adjusted, self.ids[:count], self.logits[:count], ranked=self.ranked)

    def in_order(self) -> Candidates:
        if self.ranked:
            return self
        order = self.places.sort(descending=True, stable=True).indices
        return Candidates(self._adjusted, self.ids[order], self.logits[order], ranked=True)

    @property
    def places(self) -> Tensor:
        """What their order goes by, float64 `[n]`: the larger the earlier."""
        return self._adjusted if len(self) == len(self._adjusted) and not self.ranked else self._adjusted[self.ids]


@lru_cache(maxsize=4)
def _all_ids(vocab: int, device: torch.device) -> Tensor:
    """Never written to."""
    return torch.arange(vocab, device=device)
