"""What `exl_chain` computes: a distribution by a chain of steps, in doubles, and the draw from it.

The order of tokens is that of the adjusted logits in float32, of equal ones the lower id first. A step bends the
logits or drops tokens; the best one left always stays.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exlchat.ext.chain import STEP_NAMES
from exlchat.ext.functions import CChain
from exlchat.ext.philox import uniform_bits

_LEAST_TEMPERATURE = 1e-2


class Chain:
    """A distribution on its way.

    Args:
        adjusted: float32 `[vocab]`; at least one is finite.
        chain: the settings.
        mu: Mirostat's.
        coin: XTC's uniform number.
        sheltered: bool `[vocab]`, tokens that XTC leaves alone; `None` shelters none.
    """

    def __init__(
        self, adjusted: Tensor, chain: CChain, *, mu: float = 0.0, coin: float = 0.0, sheltered: Tensor | None = None
    ) -> None:
        self.order = torch.sort(adjusted, descending=True, stable=True).indices
        """int64: ids of the tokens left, the best first."""
        self.order = self.order[adjusted[self.order] > -math.inf]
        self.logits = adjusted[self.order].double()
        self._vocab = len(adjusted)
        self._chain, self._mu, self._coin = chain, mu, coin
        self._sheltered = torch.zeros(self._vocab, dtype=torch.bool) if sheltered is None else sheltered
        self.surprises: dict[int, float] = {}
        """Of the tokens that Mirostat left, in bits."""
        for number in chain.steps[: chain.step_count]:
            getattr(self, f"_{STEP_NAMES[number]}")()

    @property
    def p(self) -> Tensor:
        """float64, of the tokens left, in their order."""
        return torch.softmax(self.logits, 0)

    def probabilities(self) -> Tensor:
        """float64 `[vocab]`."""
        return torch.zeros(self._vocab, dtype=torch.float64).scatter_(0, self.order, self.p)

    def _weights(self) -> Tensor:
        """float64: 1 for the best. Sums of equal ones are exact, so a share falls where arithmetic on paper has it."""
        return torch.exp(self.logits - self.logits.max())

    def _entropy(self) -> float:
        p = self.p
        return float(-torch.xlogy(p, p).sum())

    def _keep(self, kept: Tensor) -> None:
        self.order, self.logits = self.order[kept], self.logits[kept]

    def _keep_above(self, kept: Tensor) -> None:
        kept[0] = True
        self._keep(kept)

    def _smoothing(self) -> None:
        """Quadratic sampling with a cubic part (kalomaze)."""
        factor, curve = self._chain.smoothing_factor, self._chain.smoothing_curve
        x = self.logits - self.logits.max()
        self.logits = self.logits.max() - (3 - curve) / 2 * factor * x**2 + (curve - 1) / 2 * factor * x**3

    def _temperature(self) -> None:
        """Or the dynamic one, by the entropy."""
        chain, temperature = self._chain, self._chain.temperature
        if chain.dynatemp_high > 0:
            share = self._entropy() / math.log(len(self.order)) if len(self.order) > 1 else 0.0
            share = min(max(share, 0.0), 1.0) ** chain.dynatemp_exponent
            temperature = chain.dynatemp_low + (chain.dynatemp_high - chain.dynatemp_low) * share
            temperature = max(temperature, _LEAST_TEMPERATURE)
        self.logits = self.logits / temperature

    def _top_n_sigma(self) -> None:
        deviation = self.logits.std(correction=0)
        self._keep_above(self.logits >= self.logits.max() - self._chain.top_n_sigma * deviation)

    def _top_k(self) -> None:
        self._keep(torch.arange(len(self.order)) < self._chain.top_k)

    def _top_p(self) -> None:
        weights = self._weights()
        self._keep_above(weights.cumsum(0) - weights < self._chain.top_p * weights.sum())

    def _top_a(self) -> None:
        p = self.p
        self._keep_above(p >= self._chain.top_a * p.max() ** 2)

    def _min_p(self) -> None:
        p = self.p
        self._keep_above(p >= self._chain.min_p * p.max())

    def _tfs(self) -> None:
        p = self.p
        if len(p) < 3:
            return
        bends = (p[:-2] - 2 * p[1:-1] + p[2:]).abs()
        if bends.sum() > 0:
            kept = 1 + int((bends.cumsum(0) <= self._chain.tfs * bends.sum()).sum())
            self._keep(torch.arange(len(p)) < kept)

    def _typical(self) -> None:
        """Meister et al. 2022, doi 10.1162/tacl_a_00536."""
        p = self.p
        distance = (-p.log() - self._entropy()).abs()
        nearest = torch.sort(distance, stable=True).indices  # the list is in order: larger ones first, then lower ids
        ordered = self._weights()[nearest]
        kept = nearest[ordered.cumsum(0) - ordered < self._chain.typical * ordered.sum()]
        self._keep(kept.sort().values)

    def _epsilon_cutoff(self) -> None:
        self._keep_above(self.p >= self._chain.epsilon)

    def _eta_cutoff(self) -> None:
        """Hewitt, Manning, Liang 2022, doi 10.18653/v1/2022.findings-emnlp.249."""
        eta = self._chain.eta
        self._keep_above(self.p >= min(eta, math.sqrt(eta) * math.exp(-self._entropy())))

    def _mirostat(self) -> None:
        """Version 2: Basu et al. 2021, arXiv 2007.14966."""
        self._keep_above(-self.p.log2() <= self._mu)
        self.surprises = dict(zip(self.order.tolist(), (-self.p.log2()).tolist(), strict=True))

    def _xtc(self) -> None:
        """p-e-w 2024, github.com/oobabooga/text-generation-webui/pull/6335."""
        if self._coin >= self._chain.xtc_probability:
            return
        likely = (self.p >= self._chain.xtc_threshold) & ~self._sheltered[self.order]
        if int(likely.sum()) >= 2:
            likely[int(likely.nonzero()[-1])] = False
            self._keep(~likely)


def draw(
    adjusted: Tensor,
    chain: CChain,
    *,
    seed: int,
    index: int,
    attempt: int = 0,
    mu: float = 0.0,
    sheltered: Tensor | None = None,
) -> tuple[int, float]:
    """The token, and Mirostat's next mu. Arguments as `Chain` and `uniform_bits` have them."""
    coin = uniform_bits(seed, index, attempt=attempt, coin=True) / 2**53
    left = Chain(adjusted, chain, mu=mu, coin=coin, sheltered=sheltered)
    cumulative = left.probabilities().cumsum(0)
    share = cumulative[-1] * (uniform_bits(seed, index, attempt=attempt) / 2**53)
    token = int(torch.searchsorted(cumulative, share, right=True))
    if left.surprises:
        mu -= chain.mirostat_eta * (left.surprises[token] - chain.mirostat_tau)
    return token, mu
