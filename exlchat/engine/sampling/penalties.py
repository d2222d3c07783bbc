"""Lower logits for tokens that were said before, however they were said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HIGHEST = 1e60  # of a logit: a penalty far below 1 must not make it infinite


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """Tokens that count as said: ids `[n]`, each once and ascending, and their weights, float64 `[n]`.

    Args:
        latest: the weight of a token's last occurrence, above 0, up to 1.
        total: of all its occurrences.
    """

    tokens: NDArray[np.int64]
    latest: NDArray[np.float64]
    total: NDArray[np.float64]


def said(context: NDArray[np.int64], *, span: int, decay: int, vocab: int) -> CountedTokens:
    """How much each token of a context counts.

    With `d` the distance from the newest token, which is 0, tokens with `d < span + decay` count, and

        w(d) = 1 for d <= span, else 1 - (d - span) / decay

    As exllamav2 has it (`penalty_range` and `penalty_decay`, there `token_repetition_range` and `..._decay`).

    Args:
        context: ids below `vocab`.
        span: 0 is the whole context, and then there is no decay.
    """
    counted = context[-(span + decay) :] if span else context
    weights = np.ones(len(counted))
    if span and decay:
        distance = np.arange(len(counted) - 1, -1, -1)
        weights -= np.maximum(distance - span, 0) / decay
    last = np.full(vocab, -1)
    last[counted] = np.arange(len(counted))  # of equal ids the last one stays
    tokens = np.flatnonzero(last >= 0)
    total: NDArray[np.float64] = np.bincount(counted, weights, minlength=vocab).astype(np.float64, copy=False)
    return CountedTokens(tokens, weights[last[tokens]], total[tokens])


def penalise(logits: Tensor, before: CountedTokens, *, repetition: float, frequency: float, presence: float) -> None:
    """Repetition, frequency and presence penalty, in place.

    With `w` the weight of the last occurrence and `W` that of all:

        rho = r + (1 - r) * (1 - w);   l = l / rho if l > 0 else l * rho;   l = l - presence * w - frequency * W

    Keskar et al. 2019, "CTRL", arXiv:1909.05858, for the first, and the API reference of OpenAI for the others; the
    weights are those of exllamav2.

    Args:
        logits: float64 `[vocab]`.
        repetition: r; 1 is off, as 0 is for the others.
    """
    tokens = torch.from_numpy(before.tokens).to(logits.device)
    latest = torch.from_numpy(before.latest).to(logits.device)
    total = torch.from_numpy(before.total).to(logits.device)
    found = logits[tokens]
    rho = repetition + (1.0 - repetition) * (1.0 - latest)
    found = torch.where(found > 0, (found / rho).clamp_max(_HIGHEST), found * rho)
    logits[tokens] = found - presence * latest - frequency * total
