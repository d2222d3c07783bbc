"""Attention of new tokens over cached ones in plain torch, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Scores that are held at once where torch has no fused attention: 256 MiB in float32.
_MOST_SCORES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Rules:
    """What a layer's attention does beside the plain sum.

    Args:
        scale: of the products of query and key.
        window: how many tokens each sees, itself included; 0 sees all.
        softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them (Gemma 2, arXiv 2408.00118).
        sinks: `[heads]`, a logit of each head that joins its softmax without a value (gpt-oss; Xiao et al. 2023, arXiv
            2309.17453).
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None


def attention(queries: Tensor, keys: Tensor, values: Tensor, rules: Rules) -> Tensor:
    """Causal attention of the last tokens over all, or over a window.

    Args:
        queries: `[heads, tokens, head_dim]`, the last `tokens` of `length` positions.
        keys, values: `[kv_heads, length, head_dim]`; with a window at least all that the first token sees.

    Returns:
        `[heads, tokens, head_dim]`.
    """
    if rules.softcap or rules.sinks is not None:
        return _in_parts(queries, keys, values, rules)
    tokens, length = queries.shape[1], keys.shape[1]
    mask: Tensor | None = None
    if rules.window and length > rules.window:
        mask = _visible(range(length - tokens, length), length, rules.window, keys.device)
    elif queries.is_cuda:
        mask = _fused_mask(tokens, length)
    elif 1 < tokens < length:
        mask = _visible(range(length - tokens, length), length, 0, keys.device)
    return functional.scaled_dot_product_attention(
        queries.unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None and tokens > 1,
        scale=rules.scale,
        enable_gqa=True,
    ).squeeze(0)


def _fused_mask(tokens: int, length: int) -> Tensor:
    """What CUDA's fused kernels do without a mask in memory. Where there is none, torch takes cuDNN, which spent 0.4 s
    on each new length, so one token gets it too."""
    # Brings torch._dynamo and sympy, more than a second which a start on the CPU does without.
    from torch.nn.attention.bias import causal_lower_right

    mask: Tensor = causal_lower_right(tokens, length)
    return mask


def _visible(places: range, length: int, window: int, device: torch.device) -> Tensor:
    """bool `[places, length]`: what the tokens at these places of `length` see; a window of 0 sees all."""
    positions = torch.arange(length, device=device)
    ages = positions[places.start : places.stop, None] - positions
    return (ages >= 0) & (ages < window) if window else ages >= 0


def _in_parts(queries: Tensor, keys: Tensor, values: Tensor, rules: Rules) -> Tensor:
    """Scores written out, of as many queries at a time as memory allows."""
    heads, tokens, head_dim = queries.shape
    kv_heads, length, _ = keys.shape
    mixed = torch.empty_like(queries)
    step = max(_MOST_SCORES // (heads * length), 1)
    for first in range(0, tokens, step):
        end = min(first + step, tokens)
        part = queries[:, first:end].reshape(kv_heads, -1, head_dim)
        scores = (part @ keys.transpose(1, 2)).view(heads, end - first, length).float() * rules.scale
        if rules.softcap:
            scores = rules.softcap * torch.tanh(scores / rules.softcap)
        places = range(length - tokens + first, length - tokens + end)
        scores.masked_fill_(~_visible(places, length, rules.window, keys.device), -torch.inf)
        weights = _softmax(scores, rules.sinks).to(values.dtype).view(kv_heads, -1, length)
        mixed[:, first:end] = (weights @ values).view(heads, end - first, head_dim)
    return mixed


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    joined = torch.cat((scores, sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)), dim=-1)
    return joined.softmax(-1)[..., :-1]
