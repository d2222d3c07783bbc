"""The sampler of `sampling.py` in plain torch: the same integers, summed and cut the same way.

`exlchat.engine.sampling` defines the distribution in float64; this one says what the kernels make of it. They differ
by the rounding of the weights: at most 2^-23 of their sum where 2^18 tokens all weigh little, else about 1e-6.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exlchat.ext.philox import uniform_bits

_ONE = 2.0**40


def weights(logits: Tensor, octaves_per_logit: float) -> Tensor:
    """int64 `[vocab]`: `2**40` for the best logit, half of it for each octave below. Logits: float32 `[vocab]`."""
    octaves = (logits.max() - logits) * octaves_per_logit
    return (torch.exp2(-octaves) * _ONE).round().to(torch.int64)


def kept_weights(
    logits: Tensor, octaves_per_logit: float, *, top_k: int = 0, top_p: float = 1.0, deepest: float = math.inf
) -> Tensor:
    """int64 `[vocab]`: the weights of the tokens that may be drawn, 0 for the others.

    Args:
        logits: float32 `[vocab]`.
        octaves_per_logit: `log2(e) / temperature`.
        top_k: keep the k best; 0 keeps all.
        top_p: then keep a token while the weight before it is below this share; 1 keeps all.
        deepest: then keep what is at most so many octaves below the best.
    """
    kept = weights(logits, octaves_per_logit)
    order = torch.sort(logits, descending=True, stable=True).indices
    if top_k:
        kept[order[top_k:]] = 0
    if top_p < 1.0:
        total = int(kept.sum())
        target = max(1, min(math.ceil(top_p * total), total))
        ordered = kept[order]
        kept[order[ordered.cumsum(0) - ordered >= target]] = 0
    kept[(logits.max() - logits) * octaves_per_logit > deepest] = 0
    return kept


def draw(kept: Tensor, seed: int, index: int) -> int:
    """The id in which the draw falls: the first whose cumulative weight, in id order, is above the drawn share."""
    cumulative = kept.cumsum(0)
    target = uniform_bits(seed, index) * int(cumulative[-1]) >> 53
    return int(torch.searchsorted(cumulative, target, right=True))


def scale_logits(logits: Tensor, *, scale: float = 1.0, softcap: float = 0.0) -> Tensor:
    """float64 `[vocab]`."""
    scaled = logits.double() * scale
    return softcap * torch.tanh(scaled / softcap) if softcap else scaled
