"""logits -> token."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.ext.philox import uniform_bits


class NotNumbersError(ValueError):
    """A logit is NaN or +inf, or all are -inf: there is nothing to draw from."""

    def __init__(self) -> None:
        super().__init__("the logits are not numbers")


def probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution a token is drawn from.

    Args:
        logits: float `[vocab]`; -inf bars a token.
        settings: not greedy.

    Returns:
        float64 `[vocab]` summing to 1, zero where a step has removed a token. Of equally likely tokens the ones
        with the lower id stay.
    """
    p = torch.softmax(logits.double() / settings.temperature, dim=-1)
    if settings.top_k or settings.top_p < 1.0:
        ordered, order = p.sort(descending=True, stable=True)
        if settings.top_k:
            ordered[settings.top_k :] = 0.0
        if settings.top_p < 1.0:
            before = ordered.cumsum(0) - ordered
            ordered[before >= settings.top_p * ordered.sum()] = 0.0
        p = torch.zeros_like(p).scatter_(0, order, ordered)
    if settings.min_p > 0.0:
        p = torch.where(p >= settings.min_p * p.max(), p, 0.0)
    return p / p.sum()


class Sampler:
    """Draws the tokens of one answer.

    One uniform number a token, by seed and index of the token in the answer (Philox4x32-10), turned into a token by
    the inverse of the cumulative distribution in id order. The kernel of `exlchat.ext.sampling` does the same, so a
    seed means the same on every device, as far as the logits agree.
    """

    def __init__(self, settings: SamplingSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._index = 0

    def draw(self, logits: Tensor) -> int:
        """A token from float `[vocab]`. Raises `NotNumbersError`."""
        # The maximum tells all three.
        if not bool(logits.max().isfinite()):
            raise NotNumbersError
        index, self._index = self._index, self._index + 1
        if self._settings.greedy:
            return int(logits.argmax())
        cumulative = probabilities(logits, self._settings).cumsum(0)
        threshold = cumulative[-1] * (uniform_bits(self._seed, index) / 2**53)
        return int(torch.searchsorted(cumulative, threshold, right=True).clamp_max(len(cumulative) - 1))
