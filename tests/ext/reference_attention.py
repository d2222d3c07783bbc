"""Decode attention in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext.attention import AttentionRules, LayerPages
from tests.ext.reference_pages import cached_rows, write_pages


def attention(
    qkv: Tensor, *, pages: LayerPages, page_table: Tensor, position: int, turns: Tensor, rules: AttentionRules
) -> Tensor:
    """float64 `[heads, head_dim]`; stores the new key and value. Arguments as `attention.Attention.attention` has them.

    The new token is used as it is and stored rounded.
    """
    kv_heads, heads = pages.keys.shape[0], qkv.shape[0] - 2 * pages.keys.shape[0]
    queries, keys = (
        turned(_normed(x.double(), weight, rules.eps), turns[position], interleaved=rules.interleaved)
        for x, weight in ((qkv[:heads], rules.query_norm), (qkv[heads:-kv_heads], rules.key_norm))
    )
    values = qkv[-kv_heads:].double()
    first = max(position + 1 - rules.window, 0) if rules.window else 0
    old = cached_rows(pages, page_table, first, position - first, torch.float64)
    write_pages(pages, page_table, position, keys.unsqueeze(1), values.unsqueeze(1))
    all_keys, all_values = (torch.cat((o, n.unsqueeze(1)), 1) for o, n in zip(old, (keys, values), strict=True))
    group = heads // kv_heads
    scores = queries.unsqueeze(1) @ all_keys.repeat_interleave(group, 0).transpose(1, 2) * rules.scale
    if rules.softcap:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    count = scores.shape[-1]
    if rules.sinks is not None:
        scores = torch.cat((scores, rules.sinks.double().view(-1, 1, 1)), dim=-1)
    return (torch.softmax(scores, dim=-1)[..., :count] @ all_values.repeat_interleave(group, 0)).squeeze(1)


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def turned(x: Tensor, turns: Tensor, *, interleaved: bool) -> Tensor:
    """The first elements of each head turned by `[..., pairs, 2]`, cos and sin, the others as they are."""
    cos, sin = turns.double().unbind(-1)
    pairs = cos.shape[-1]
    turning, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        first, second = turning[..., ::2], turning[..., 1::2]
        both = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turning[..., :pairs], turning[..., pairs:]
        both = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((both, rest), dim=-1)
