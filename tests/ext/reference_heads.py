"""The operation of `heads.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.ext.heads import HeadNorms


def norm_heads(qkv: Tensor, norms: HeadNorms, *, kv_heads: int) -> None:
    """As `heads.HeadKernels.norm_heads`, computed in float64."""
    heads = qkv.shape[1] - 2 * kv_heads
    for weight, part in ((norms.query, qkv[:, :heads]), (norms.key, qkv[:, heads : heads + kv_heads])):
        if weight is None:
            continue
        x = part.double()
        if norms.kind == "layer":
            normed = functional.layer_norm(x, x.shape[2:], eps=norms.eps)
        else:
            normed = x * torch.rsqrt(x.square().mean((1, 2), keepdim=True) + norms.eps)
        part.copy_(normed * weight.double())
