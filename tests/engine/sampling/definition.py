"""The steps of the distribution once more, from the published definitions, in plain Python floats and loops.

Nothing here is shared with `exlchat.engine.sampling`. Where two numbers that are compared lie so close together that
rounding decides, a definition says nothing: `Defined.edge` tells how close the closest ones were.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from exlchat.engine import SamplingSettings

NEVER, ALWAYS = 1.0, 0.0
"""What the coin of XTC may show."""


@dataclass
class Defined:
    """`p` of the tokens that are left, by id; `steered` is that behind Mirostat."""

    p: dict[int, float]
    edge: float = math.inf
    steered: dict[int, float] = field(default_factory=dict)


class Definition:
    def __init__(self, adjusted: Sequence[float], settings: SamplingSettings) -> None:
        self.settings = settings
        self.logit = {token: value for token, value in enumerate(adjusted) if value > -math.inf}
        # The order of all steps.
        self.order = sorted(self.logit, key=lambda token: (-self.logit[token], token))
        self.edge = math.inf

    def run(self, coin: float = NEVER, mu: float | None = None, protected: Collection[int] = ()) -> Defined:
        steered: dict[int, float] = {}
        for step in self.settings.steps:
            p = self.p()
            if step == "mirostat":
                self.mirostat(p, 2 * self.settings.mirostat_tau if mu is None else mu)
                steered = self.p()
            elif step == "xtc":
                if coin < self.settings.xtc_probability:
                    self.xtc(p, protected)
            else:
                getattr(self, step)(p)
            self.order = [token for token in self.order if token in self.logit]
        return Defined(self.p(), self.edge, steered)

    def p(self) -> dict[int, float]:
        best = max(self.logit.values())
        weight = {token: math.exp(value - best) for token, value in self.logit.items()}
        total = math.fsum(weight.values())
        return {token: weight[token] / total for token in self.order if token in weight}

    def at_least(self, value: float, bound: float) -> bool:
        self.edge = min(self.edge, abs(value - bound) / max(abs(value), abs(bound), 1e-300))
        return value >= bound

    def retain(self, tokens: Collection[int]) -> None:
        self.logit = {token: self.logit[token] for token in tokens}

    def retain_or_best(self, tokens: Collection[int], p: dict[int, float]) -> None:
        self.retain(tokens or [max(p, key=lambda token: p[token])])

    def beginning(self, ordered: Sequence[int], p: dict[int, float], share: float) -> list[int]:
        kept, total = [ordered[0]], p[ordered[0]]
        for token in ordered[1:]:
            if self.at_least(total, share):
                break
            kept.append(token)
            total += p[token]
        return kept

    def smoothing(self, p: dict[int, float]) -> None:
        best, f, curve = max(self.logit.values()), self.settings.smoothing_factor, self.settings.smoothing_curve
        for token, value in self.logit.items():
            x = value - best
            self.logit[token] = best - (3 - curve) / 2 * f * x**2 + (curve - 1) / 2 * f * x**3

    def temperature(self, p: dict[int, float]) -> None:
        degree, settings = self.settings.temperature, self.settings
        if settings.dynatemp_high > 0:
            degree = settings.dynatemp_low
            if len(p) > 1:
                part = -math.fsum(one * math.log(one) for one in p.values() if one) / math.log(len(p))
                degree += (settings.dynatemp_high - degree) * part**settings.dynatemp_exponent
            degree = max(degree, 0.01)
        self.logit = {token: value / degree for token, value in self.logit.items()}

    def top_n_sigma(self, p: dict[int, float]) -> None:
        values = list(self.logit.values())
        if len(set(values)) > 1:
            best, mean = max(values), math.fsum(values) / len(values)
            sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
            least = best - self.settings.top_n_sigma * sigma
            # What is the best is no question of rounding.
            rest = [token for token, value in self.logit.items() if value < best and self.at_least(value, least)]
            self.retain([*(token for token, value in self.logit.items() if value == best), *rest])

    def top_k(self, p: dict[int, float]) -> None:
        self.retain(self.order[: self.settings.top_k])

    def top_p(self, p: dict[int, float]) -> None:
        self.retain(self.beginning(self.order, p, self.settings.top_p))

    def top_a(self, p: dict[int, float]) -> None:
        least = self.settings.top_a * max(p.values()) ** 2
        self.retain([token for token in p if self.at_least(p[token], least)])

    def min_p(self, p: dict[int, float]) -> None:
        best = max(p.values())
        self.retain([token for token in p if p[token] == best or self.at_least(p[token], self.settings.min_p * best)])

    def tfs(self, p: dict[int, float]) -> None:
        values = list(p.values())
        slopes = [b - a for a, b in pairwise(values)]
        bends = [abs(b - a) for a, b in pairwise(slopes)]
        total = math.fsum(bends)
        if total == 0.0:
            return
        self.edge = min(self.edge, total)
        kept = 1
        for through in accumulate(bends):
            if self.at_least(through / total, self.settings.tfs):
                break
            kept += 1
        self.retain(self.order[:kept])

    def typical(self, p: dict[int, float]) -> None:
        surprise = {token: -math.log(one) if one else math.inf for token, one in p.items()}
        entropy = math.fsum(one * surprise[token] for token, one in p.items() if one)
        far = {token: abs(surprise[token] - entropy) for token in p}
        nearest = sorted(p, key=lambda token: (far[token], -p[token], token))
        kept = self.beginning(nearest, p, self.settings.typical_p)
        if len(kept) < len(p) and p[kept[-1]] != p[nearest[len(kept)]]:
            self.edge = min(self.edge, far[nearest[len(kept)]] - far[kept[-1]])
        for one, other in pairwise(kept):
            if p[one] != p[other]:
                self.edge = min(self.edge, far[other] - far[one])
        self.retain(kept)

    def epsilon_cutoff(self, p: dict[int, float]) -> None:
        self.retain_or_best([token for token in p if self.at_least(p[token], self.settings.epsilon_cutoff)], p)

    def eta_cutoff(self, p: dict[int, float]) -> None:
        eta = self.settings.eta_cutoff
        entropy = -math.fsum(one * math.log(one) for one in p.values() if one)
        least = min(eta, math.sqrt(eta) * math.exp(-entropy))
        self.retain_or_best([token for token in p if self.at_least(p[token], least)], p)

    def mirostat(self, p: dict[int, float], mu: float) -> None:
        self.retain_or_best([token for token in p if p[token] and self.at_least(mu, -math.log2(p[token]))], p)

    def xtc(self, p: dict[int, float], protected: Collection[int]) -> None:
        likely = [token for token in p if self.at_least(p[token], self.settings.xtc_threshold)]
        likely = [token for token in likely if token not in protected]
        self.retain([token for token in p if token not in likely[:-1]])

    def skew(self, p: dict[int, float]) -> None:
        power, through, before = math.exp(self.settings.skew), 0.0, 0.0
        for token, one in p.items():
            through += one
            part = min(through, 1.0) ** power - before**power
            before = min(through, 1.0)
            if part > 0:
                self.logit[token] = math.log(part)
            else:
                del self.logit[token]


def defined(
    adjusted: Sequence[float],
    settings: SamplingSettings,
    coin: float = NEVER,
    mu: float | None = None,
    protected: Collection[int] = (),
) -> Defined:
    return Definition(adjusted, settings).run(coin, mu, protected)


def fits(counts: dict[int, int], p: dict[int, float]) -> bool:
    """Whether counts of draws follow a distribution: Pearson's chi-square, 99.99 %.

    Tokens of which fewer than 5 are expected count as one.
    """
    draws = sum(counts.values())
    if any(p.get(token, 0.0) == 0.0 for token in counts):
        return False
    often = [token for token in p if p[token] * draws >= 5]
    pairs = [(float(counts.get(token, 0)), p[token] * draws) for token in often]
    seen, expected = draws - sum(a for a, _ in pairs), draws - sum(b for _, b in pairs)
    if expected >= 5:
        pairs.append((seen, expected))
    degrees = len(pairs) - 1
    if degrees == 0:
        return True
    chi_square = sum((a - b) ** 2 / b for a, b in pairs)
    # Wilson and Hilferty 1931; 3.719 is the quantile of the normal distribution.
    spread = 2 / (9 * degrees)
    return chi_square < degrees * (1 - spread + 3.719 * math.sqrt(spread)) ** 3
