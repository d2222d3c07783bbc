"""Every operation of `ops.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.layout import PackedMatrix, decode_tiles


def gemv(matrices: Sequence[PackedMatrix], x: Tensor) -> Tensor:
    """float64 `[rows, columns]`: `x W` of all matrices, their columns one behind the other."""
    return torch.cat([x.double() @ decode_tiles(matrix).double() for matrix in matrices], dim=1)


def gated(matrices: Sequence[PackedMatrix], x: Tensor) -> Tensor:
    """float64 `[rows, columns]`: `silu(x W0) * (x W1)`."""
    gate, up = gemv(matrices, x).chunk(2, dim=1)
    return functional.silu(gate) * up


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """float16 `[1, features]`: x over its root mean square, times the weight."""
    return (functional.rms_norm(x.double(), (x.shape[1],), eps=eps) * weight.double()).half()


def attention(qkv: Tensor, *, turns: Tensor, position: int, keys: Tensor, values: Tensor) -> Tensor:
    """float64 `[heads, head_dim]`; stores the new key and value.

    Args:
        qkv: float16 `[heads + 2 * kv_heads, head_dim]` of one new token, before rotary positions.
        turns: float32 `[capacity, head_dim / 2, 2]`: cos and sin.
        position: how many tokens are cached.
        keys, values: float16 `[kv_heads, capacity, head_dim]`.
    """
    kv_heads, head_dim = len(keys), qkv.shape[1]
    heads = len(qkv) - 2 * kv_heads
    cos, sin = turns[position].double().unbind(-1)
    first, second = qkv.double().chunk(2, dim=1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1).half()
    keys[:, position], values[:, position] = turned[heads : heads + kv_heads], qkv[heads + kv_heads :]
    group = heads // kv_heads
    k = keys[:, : position + 1].double().repeat_interleave(group, 0)
    v = values[:, : position + 1].double().repeat_interleave(group, 0)
    scores = turned[:heads].double().unsqueeze(1) @ k.transpose(1, 2) * head_dim**-0.5
    return (torch.softmax(scores, dim=-1) @ v).squeeze(1)


def embed(table: Tensor, token: Tensor) -> Tensor:
    """float32 `[1, width]`: a row of a float16 table."""
    return table[token].float()
