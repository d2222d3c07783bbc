"""What happens to logits before there is a distribution: guidance, penalties, biases, and bars."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exlchat.engine.sampling.errors import NothingAllowedError, NotNumbersError
from exlchat.engine.sampling.penalties import penalise, said
from exlchat.engine.sampling.repetition import dry, ngram_ends
from exlchat.engine.sampling.vocabulary import TokenTexts
from exlchat.llm.controls import TokenName
from exlchat.llm.sampling import SamplingSettings


def check_sampling(settings: SamplingSettings, texts: TokenTexts) -> None:
    """Whether the tokens that settings name are tokens of a model.

    Raises:
        ValueError: one is not, or is named twice; in one line.
    """
    _biases(settings, texts)
    _banned(settings, texts)


def guided(logits: Tensor, guidance: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: away from what a negative prompt leads to.

        l = scale * logsoftmax(l0) + (1 - scale) * logsoftmax(l1)

    Sanchez et al. 2023, "Stay on topic with classifier-free guidance", arXiv:2306.17806. A token that is -inf in one of
    both stays so, where the formula has no value.

    Args:
        logits, guidance: l0 and l1, float64 `[vocab]`; l1 behind the negative prompt.
    """
    mixed = scale * logits.log_softmax(-1) + (1.0 - scale) * guidance.log_softmax(-1)
    return mixed.masked_fill_(logits.isneginf() | guidance.isneginf(), -math.inf)


class Adjustments:
    """The steps before the distribution, of one answer's settings.

    Args:
        texts: `None` knows tokens by their ids alone; then no token breaks a passage of DRY.

    Raises:
        ValueError: a token that is named does not exist; in one line.
    """

    def __init__(self, settings: SamplingSettings, texts: TokenTexts | None) -> None:
        self._settings = settings
        biases = _biases(settings, texts)
        self._biased = torch.tensor(list(biases), dtype=torch.int64)
        self._biases = torch.tensor(list(biases.values()), dtype=torch.float64)
        self._banned = torch.tensor(_banned(settings, texts), dtype=torch.int64)
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        self._penalises = any(settings.is_on(name) for name in names)
        self._breakers: NDArray[np.bool_] | None = None
        if settings.dry_multiplier and texts is not None:
            self._breakers = texts.breakers(settings.dry_breakers)
        self.any = self._penalises or bool(biases) or bool(len(self._banned)) or settings.looks_back
        """Whether logits change even without guidance and without anything barred at one place."""

    def apply(
        self,
        logits: Tensor,
        context: NDArray[np.int64],
        *,
        guidance: Tensor | None,
        allowed: Tensor | None,
        barred: Collection[int],
    ) -> Tensor:
        """Float64 `[vocab]`, -inf where a token may not come; at least one may. Arguments are those of `Sampler.draw`.

        Raises:
            NotNumbersError: of the model's logits.
            NothingAllowedError: no token is left.
        """
        check_numbers(logits)
        adjusted = logits.to(torch.float64, copy=True)
        if guidance is not None and self._settings.guidance_scale != 1.0:
            check_numbers(guidance)
            adjusted = guided(adjusted, guidance.to(adjusted), self._settings.guidance_scale)
        self._look_back(adjusted, context)
        if len(self._biased):
            adjusted[self._biased.to(adjusted.device)] += self._biases.to(adjusted.device)
        adjusted[self._banned.to(adjusted.device)] = -math.inf
        if allowed is not None:
            adjusted.masked_fill_(~allowed.to(adjusted.device), -math.inf)
        if barred:
            adjusted[torch.tensor(list(barred), device=adjusted.device)] = -math.inf
        if bool(adjusted.max().isneginf()):
            raise NothingAllowedError(self._causes(guidance, allowed, barred))
        return adjusted

    def _look_back(self, logits: Tensor, context: NDArray[np.int64]) -> None:
        """Penalties, DRY and n-grams, in place."""
        settings = self._settings
        if self._penalises:
            before = said(context, span=settings.penalty_range, decay=settings.penalty_decay, vocab=len(logits))
            penalise(
                logits,
                before,
                repetition=settings.repetition_penalty,
                frequency=settings.frequency_penalty,
                presence=settings.presence_penalty,
            )
        if settings.dry_multiplier:
            tokens, penalties = dry(
                context[-settings.dry_range :],
                self._breakers,
                multiplier=settings.dry_multiplier,
                base=settings.dry_base,
                allowed=settings.dry_allowed_length,
            )
            logits[torch.from_numpy(tokens).to(logits.device)] -= torch.from_numpy(penalties).to(logits.device)
        if settings.no_repeat_ngram:
            ends = ngram_ends(context, settings.no_repeat_ngram)
            logits[torch.from_numpy(ends).to(logits.device)] = -math.inf

    def _causes(self, guidance: Tensor | None, allowed: Tensor | None, barred: Collection[int]) -> list[str]:
        found = [name for name in ("no_repeat_ngram", "banned_tokens") if self._settings.is_on(name)]
        if allowed is not None:
            found.append("what the answer has to be")
        if barred:
            found.append(f"{len(barred):,} tokens barred at this place")
        if guidance is not None:
            found.append("the negative prompt")
        return found


def check_numbers(logits: Tensor) -> None:
    """Raises `NotNumbersError` where logits are none."""
    # The maximum tells all three: NaN, +inf, and nothing but -inf.
    if not bool(logits.max().isfinite()):
        raise NotNumbersError


def _biases(settings: SamplingSettings, texts: TokenTexts | None) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, bias in settings.logit_bias:
        token = _token("logit_bias", name, texts)
        if token in found:
            raise ValueError(f"logit_bias: {name!r} is token {token}, which is named twice; name it once")
        found[token] = bias
    return found


def _banned(settings: SamplingSettings, texts: TokenTexts | None) -> list[int]:
    return [_token("banned_tokens", name, texts) for name in settings.banned_tokens]


def _token(setting: str, name: TokenName, texts: TokenTexts | None) -> int:
    if texts is None:
        if isinstance(name, int):
            return name
        raise ValueError(f"{setting}: {name!r} is a text, and there is no tokenizer here; name the token by its id")
    try:
        return texts.token(name)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
