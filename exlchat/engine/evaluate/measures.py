"""What two models say of the same text, place by place, and the figures that sum it up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exlchat.llm.info import ModelError

CONFIDENCES = (0.25, 0.5, 0.75, 0.95)
"""Between the bins by how sure the reference is of its likeliest token."""
_LOST = 700.0
"""Nats a token whose perplexity no number holds."""
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over places, and its standard error over windows, whose places are not independent; none of one window."""

    mean: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model on one text; without a reference only the perplexity.

    Args:
        places: tokens that were predicted.
        perplexity: `exp` of the mean negative log likelihood.
        log_ratio: of the perplexity to the reference's.
        divergence: of the reference from the model, in nats a token.
        quantiles: of the divergence, by `QUANTILES`; greatest: the greatest.
        same: share of places where both find the same token likeliest; same_sure: of those where the reference gives
            it more than a half.
        probability_error: root mean square of the difference in the probability of the token that comes.
        probability_change: its mean.
        far: share of places with more than one nat.
        by_confidence: mean divergence by how sure the reference is, `None` where there is no place.
    """

    places: int
    perplexity: float
    log_ratio: Estimate | None = None
    divergence: Estimate | None = None
    quantiles: tuple[float, ...] = ()
    greatest: float = 0.0
    same: float = 0.0
    same_sure: float = 0.0
    probability_error: float = 0.0
    probability_change: float = 0.0
    far: float = 0.0
    by_confidence: tuple[float | None, ...] = ()


@dataclass(slots=True)
class Places:
    """What was found so far, float32 on the CPU, a tensor a part of a window."""

    likelihoods: list[Tensor] = field(default_factory=list)
    reference_likelihoods: list[Tensor] = field(default_factory=list)
    divergences: list[Tensor] = field(default_factory=list)
    same: list[Tensor] = field(default_factory=list)
    confidences: list[Tensor] = field(default_factory=list)
    predicted_in: list[int] = field(default_factory=list)
    places_in: list[int] = field(default_factory=list)

    def add(self, window: int, logits: Tensor, next_ids: Tensor, reference: Tensor | None) -> None:
        """Some places of a window.

        Args:
            window: its number.
            logits, reference: float32 `[places, vocab]`.
            next_ids: int64 `[places]` or one fewer: the token that comes, where the window has it.
        """
        known = len(next_ids)
        log_q = logits.log_softmax(-1)
        self.likelihoods.append(_of(log_q[:known], next_ids))
        self.predicted_in += [window] * known
        if reference is None:
            return
        log_p = reference.log_softmax(-1)
        p = log_p.exp()
        self.reference_likelihoods.append(_of(log_p[:known], next_ids))
        # Where the reference gives nothing, 0 * inf is no number.
        terms = torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p))
        self.divergences.append(terms.sum(-1).cpu())
        confidence, likeliest = p.max(-1)
        self.same.append((likeliest == log_q.argmax(-1)).cpu())
        self.confidences.append(confidence.cpu())
        self.places_in += [window] * len(logits)

    def figures(self) -> Figures:
        """Raises `ModelError` for a model that says nothing of the text."""
        own = torch.cat(self.likelihoods).double()
        lost = -float(own.mean())
        if lost > _LOST:
            raise ModelError(f"the model gives the text no likelihood ({lost:.0f} nats a token); get it again")
        perplexity = math.exp(lost)
        if not self.divergences:
            return Figures(len(own), perplexity)
        reference = torch.cat(self.reference_likelihoods).double()
        divergence = torch.cat(self.divergences).double()
        same, sure = torch.cat(self.same).double(), torch.cat(self.confidences)
        bins = torch.bucketize(sure, torch.tensor(CONFIDENCES))
        change = own.exp() - reference.exp()
        by_confidence = tuple(
            float(divergence[bins == number].mean()) if bool((bins == number).any()) else None
            for number in range(len(CONFIDENCES) + 1)
        )
        return Figures(
            len(own),
            perplexity,
            log_ratio=_estimate(reference - own, self.predicted_in),
            divergence=_estimate(divergence, self.places_in),
            quantiles=tuple(float(value) for value in divergence.quantile(torch.tensor(QUANTILES).double())),
            greatest=float(divergence.max()),
            same=float(same.mean()),
            same_sure=float(same[sure > 0.5].mean()) if bool((sure > 0.5).any()) else 0.0,
            probability_error=float(change.square().mean().sqrt()),
            probability_change=float(change.mean()),
            far=float((divergence > 1).double().mean()),
            by_confidence=by_confidence,
        )


def _of(logs: Tensor, ids: Tensor) -> Tensor:
    return logs.gather(1, ids.to(logs.device).unsqueeze(1)).squeeze(1).cpu()


def _estimate(values: Tensor, windows: list[int]) -> Estimate:
    numbers = torch.tensor(windows)
    count = int(numbers.max()) + 1
    sizes = torch.bincount(numbers, minlength=count).double()
    sums = torch.bincount(numbers, weights=values, minlength=count)
    mean = float(values.mean())
    if count < 2:
        return Estimate(mean, None)
    # Of a ratio of sums over windows, which may be of unequal length.
    spread = (sums - mean * sizes).square().sum() / (count - 1)
    return Estimate(mean, math.sqrt(float(spread) * count) / float(sizes.sum()))
