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


class NothingAllowedError(ValueError):
    """No token may come."""


class TokenTexts:
    def __init__(self, *a):
        pass


def check_sampling(settings, texts):
    pass


class Sampler:
    def __init__(self, settings, seed, texts=None):
        self._settings = settings
        self._seed = seed
        self._index = 0
        self._tries = {}

    def begin(self, context):
        self._index = 0
        self._tries = {}

    def accept(self, token):
        self._index += 1

    def back(self, count):
        self._index -= count
        self._tries = {k: v for k, v in self._tries.items() if k <= self._index}
        self._tries[self._index] = self._tries.get(self._index, 0) + 1

    def draw(self, logits, *, guidance=None, allowed=None, barred=()):
        if not bool(logits.max().isfinite()):
            raise NotNumbersError
        if guidance is not None:
            s = self._settings.guidance_scale
            logits = s * logits.log_softmax(0) + (1 - s) * guidance.log_softmax(0)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        if barred:
            logits = logits.clone()
            logits[list(barred)] = -torch.inf
        if not bool(logits.max().isfinite()):
            raise NothingAllowedError("no token may come")
        if self._settings.greedy:
            return int(logits.argmax())
        cumulative = probabilities(logits, self._settings).cumsum(0)
        threshold = cumulative[-1] * (
            uniform_bits(self._seed, self._index, attempt=self._tries.get(self._index, 0)) / 2**53
        )
        return int(torch.searchsorted(cumulative, threshold, right=True).clamp_max(len(cumulative) - 1))
