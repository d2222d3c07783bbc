"""The steps from adjusted logits to the distribution that a token is drawn from, one formula each.

`l` are the logits of the tokens that are left, `p` their probabilities, which sum to 1. A step removes tokens or
changes logits; at least one token stays. What a step is called and may be stands in `exlchat.llm.controls`; a card's
kernels have their own (`exlchat/ext/csrc/sample_chain.cu`), and `device.py` says which of them know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.sampling.candidates import Candidates
from exlchat.llm.sampling import SamplingSettings

_LOWEST = -1e60  # of a logit below the best: its probability is 0 long before, and its cube is still a number
_COLDEST = 1e-2


@dataclass(frozen=True, slots=True)
class Moment:
    """What the steps need beside the settings.

    Args:
        surprise: Mirostat's mu, in bits; `None` is where it begins, at twice its tau.
        coin: from 0 below 1; XTC acts if it is below its probability. 1 is never.
        protected: bool `[vocab]`, what XTC leaves alone.
    """

    surprise: float | None = None
    coin: float = 1.0
    protected: Tensor | None = None


def smoothing(left: Candidates, factor: float, curve: float) -> Candidates:
    """Quadratic sampling: `l = max l - k * f * x^2 + s * f * x^3` with `x = l - max l`.

    And `k = (3 - c) / 2`, `s = (c - 1) / 2`, with f the factor and c the curve.

    kalomaze 2024, https://github.com/oobabooga/text-generation-webui/pull/5403; the curve is that of pull/5551.
    """
    x = left.logits - left.logits.max()
    k, s = (3.0 - curve) / 2.0, (curve - 1.0) / 2.0
    return _bounded(left, x * x * factor * (s * x - k))


def temperature(left: Candidates, degree: float) -> Candidates:
    """`l = l / T`: Ackley, Hinton, Sejnowski 1985, "A learning algorithm for Boltzmann machines"."""
    # Below the best first, as a small temperature would make all of them infinite.
    return _bounded(left, (left.logits - left.logits.max()).div_(degree))


def dynamic_temperature(left: Candidates, low: float, high: float, exponent: float) -> Candidates:
    """`T = low + (high - low) * (H / ln n)^exponent`, at least 0.01; H is the entropy of the n tokens that are left.

    kalomaze 2024, https://github.com/LostRuins/koboldcpp/pull/600; the exponent is that of
    https://github.com/ggml-org/llama.cpp/pull/4972.
    """
    unsureness = min(left.entropy / math.log(len(left)), 1.0) if len(left) > 1 else 0.0
    return temperature(left, max(low + (high - low) * unsureness**exponent, _COLDEST))


def top_n_sigma(left: Candidates, count: float) -> Candidates:
    """Keep `l >= max l - n * sigma`, sigma the standard deviation of l (that of a whole population).

    Tang et al. 2024, "Top-n-sigma: not all logits are you need", arXiv:2411.07641.
    """
    logits = left.logits
    return left.keep(logits >= logits.max() - count * logits.std(correction=0))


def top_k(left: Candidates, count: int) -> Candidates:
    """Keep the k first: Fan, Lewis, Dauphin 2018, "Hierarchical neural story generation", arXiv:1805.04833."""
    if count >= len(left):
        return left
    if left.ranked:
        return left.first(count)
    places = left.places
    last = places.topk(count).values[-1]
    kept = (places >= last).nonzero().squeeze(1)
    if len(kept) > count:  # several are level with the last one: of those the lower ids stay
        level = places[kept] == last
        kept = kept[~level | (level.cumsum(0) <= count - (~level).sum())]
    return left.at(kept)


def top_p(left: Candidates, share: float) -> Candidates:
    """Keep the smallest beginning of the order whose sum reaches `share`: a token stays if the sum before it is less.

    Holtzman et al. 2019, "The curious case of neural text degeneration", arXiv:1904.09751.
    """
    if not left.ranked:
        # All tokens below this make less than 1 - share together, so that at least `share` is before each of them: they
        # need not be sorted. (What is ranked may be skewed, so that p does not fall.)
        likely = left.p >= (1.0 - share) / len(left) * (1.0 - 1e-9)
        share /= float(left.p[likely].sum())
        left = left.keep(likely).in_order()
    return left.keep(left.p.cumsum(0) - left.p < share)


def top_a(left: Candidates, share: float) -> Candidates:
    """Keep `p >= a * (max p)^2`: BlinkDL 2022, https://github.com/BlinkDL/RWKV-LM#the-top-a-sampling-method."""
    return left.keep(left.p >= share * left.p.max() ** 2)


def min_p(left: Candidates, share: float) -> Candidates:
    """Keep `p >= m * max p`: Nguyen et al. 2024, "Turning up the heat", arXiv:2407.01082."""
    return left.keep(left.p >= share * left.p.max())


def tail_free(left: Candidates, share: float) -> Candidates:
    """With `d_i = |p_i - 2 * p_(i+1) + p_(i+2)|` in order, made to sum to 1: keep `1 + #{i: d_1 + ... + d_i <= z}`.

    Where all d are 0 there is no tail, and all stay.

    Bricken 2019, "Tail free sampling", https://www.trentonbricken.com/Tail-Free-Sampling/.
    """
    left = left.in_order()
    bends = left.p.diff(n=2).abs()
    total = bends.sum()
    if not bool(total > 0):
        return left
    return left.first(1 + int((bends.cumsum(0) / total <= share).sum()))


def typical(left: Candidates, share: float) -> Candidates:
    """With `s = -ln p` and `H = sum p * s`: by `|s - H|`, the smallest beginning whose sum reaches `share`.

    Of tokens that are as far from H the likelier comes first, and of equally likely ones the lower id.

    Meister et al. 2022, "Locally typical sampling", arXiv:2202.00666.
    """
    by_id = left.ids.argsort() if left.ranked else None
    p = left.p if by_id is None else left.p[by_id]
    far = (-p.log() - left.entropy).abs()
    likeliest = p.sort(descending=True, stable=True).indices
    nearest = likeliest[far[likeliest].sort(stable=True).indices]
    kept = nearest[p[nearest].cumsum(0) - p[nearest] < share]
    kept = kept if by_id is None else by_id[kept]
    return left.at(kept.sort().values)


def epsilon_cutoff(left: Candidates, epsilon: float) -> Candidates:
    """Keep `p >= epsilon`, or the likeliest one.

    Hewitt, Manning, Liang 2022, "Truncation sampling as language model desmoothing", arXiv:2210.15191, section 3.
    """
    return left.keep_or_best(left.p >= epsilon)


def eta_cutoff(left: Candidates, epsilon: float) -> Candidates:
    """Keep `p >= min(epsilon, sqrt(epsilon) * exp(-H))`, or the likeliest one: the same paper, section 4."""
    return left.keep_or_best(left.p >= min(epsilon, math.sqrt(epsilon) * math.exp(-left.entropy)))


def mirostat(left: Candidates, surprise: float) -> Candidates:
    """Keep `-log2 p <= mu`, or the likeliest one. The sampler moves mu behind each draw (`next_surprise`).

    Basu et al. 2020, "Mirostat: a neural text decoding algorithm that directly controls perplexity", arXiv:2007.14966;
    version 2, of their code (https://github.com/basusourya/mirostat).
    """
    return left.keep_or_best(-left.p.log2() <= surprise)


def next_surprise(surprise: float, p: float, tau: float, eta: float) -> float:
    """Mirostat's `mu = mu - eta * (-log2 p - tau)`, p of the drawn token in the distribution that it left."""
    return surprise - eta * (-math.log2(p) - tau)


def exclude_top(left: Candidates, threshold: float, protected: Tensor | None) -> Candidates:
    """XTC: of all tokens with `p >= threshold` but the protected, if they are several, keep the last in order alone.

    p-e-w 2024, "Exclude Top Choices (XTC)", https://github.com/oobabooga/text-generation-webui/pull/6335. Whether it
    acts at all a coin decides.
    """
    likely = left.p >= threshold
    if protected is not None:
        likely &= ~protected[left.ids]
    places = likely.nonzero().squeeze(1)
    if len(places) < 2:
        return left
    order = left.places[places]
    last = places[(order == order.min()).nonzero()[-1]]
    likely[last] = False
    return left.keep(~likely)


def skew(left: Candidates, strength: float) -> Candidates:
    """With F the sums of p in order: `p_i = F_i^a - F_(i-1)^a`, `a = e^skew`.

    turboderp, exllamav2: there the number that draws is raised to the power `e^-skew`, which is the same.
    """
    left = left.in_order()
    through = left.p.cumsum(0)
    powers = (through / through[-1]) ** math.exp(strength)
    p = powers.diff(prepend=powers.new_zeros(1))
    possible = p > 0
    return left.keep(possible).with_logits(p[possible].log())


Step = Callable[[Candidates, SamplingSettings, Moment], Candidates]


def _temperature(left: Candidates, settings: SamplingSettings, _moment: Moment) -> Candidates:
    if settings.dynatemp_high > 0.0:
        return dynamic_temperature(left, settings.dynatemp_low, settings.dynatemp_high, settings.dynatemp_exponent)
    return temperature(left, settings.temperature)


def _mirostat(left: Candidates, settings: SamplingSettings, moment: Moment) -> Candidates:
    return mirostat(left, 2.0 * settings.mirostat_tau if moment.surprise is None else moment.surprise)


def _exclude_top(left: Candidates, settings: SamplingSettings, moment: Moment) -> Candidates:
    if moment.coin >= settings.xtc_probability:
        return left
    return exclude_top(left, settings.xtc_threshold, moment.protected)


_STEPS: Mapping[str, Step] = {
    "smoothing": lambda left, s, _: smoothing(left, s.smoothing_factor, s.smoothing_curve),
    "temperature": _temperature,
    "top_n_sigma": lambda left, s, _: top_n_sigma(left, s.top_n_sigma),
    "top_k": lambda left, s, _: top_k(left, s.top_k),
    "top_p": lambda left, s, _: top_p(left, s.top_p),
    "top_a": lambda left, s, _: top_a(left, s.top_a),
    "min_p": lambda left, s, _: min_p(left, s.min_p),
    "tfs": lambda left, s, _: tail_free(left, s.tfs),
    "typical": lambda left, s, _: typical(left, s.typical_p),
    "epsilon_cutoff": lambda left, s, _: epsilon_cutoff(left, s.epsilon_cutoff),
    "eta_cutoff": lambda left, s, _: eta_cutoff(left, s.eta_cutoff),
    "mirostat": _mirostat,
    "xtc": _exclude_top,
    "skew": lambda left, s, _: skew(left, s.skew),
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is left behind all steps, and behind Mirostat's, if it is one of them."""

    left: Candidates
    steered: Candidates | None


def distribution(adjusted: Tensor, settings: SamplingSettings, steps: tuple[str, ...], moment: Moment) -> Distribution:
    """Runs the steps.

    Args:
        adjusted: float64 `[vocab]`, not all -inf.
        steps: `settings.steps`, which is slow to ask for at every token.
    """
    left, steered = Candidates.of(adjusted), None
    for step in steps:
        left = _STEPS[step](left, settings, moment)
        if step == "mirostat":
            steered = left
    return Distribution(left, steered)


def probabilities(logits: Tensor, settings: SamplingSettings, moment: Moment | None = None) -> Tensor:
    """The distribution a token is drawn from, by the steps alone: nothing is penalised or barred before them.

    Args:
        logits: float `[vocab]`; -inf bars a token.
        settings: not greedy.
        moment: without one XTC does not act, and Mirostat is at its beginning.

    Returns:
        float64 `[vocab]` summing to 1, zero where a step has removed a token.
    """
    left = distribution(logits.double(), settings, settings.steps, moment or Moment()).left
    return torch.zeros_like(logits, dtype=torch.float64).scatter_(0, left.ids, left.p)


def drawn(left: Candidates, share: float) -> int:
    """The first id, ascending, at which the sum of p is more than `share` of all, which is from 0 below 1."""
    ids, p = left.ids, left.p
    if left.ranked:
        ids, order = ids.sort()
        p = p[order]
    through = p.cumsum(0)
    place = int(torch.searchsorted(through, through[-1] * share, right=True))
    if place == len(through):  # a share that the product has rounded up to all: the last that weighs anything
        place = int(torch.searchsorted(through, through[-1]))
    return int(ids[place])


def _bounded(left: Candidates, logits: Tensor) -> Candidates:
    return left.with_logits(logits.clamp_(min=_LOWEST))
