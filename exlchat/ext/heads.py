"""Norms of queries and keys before the attention, other than those that `attention.AttentionRules` knows.

`tests/ext/reference_heads.py` defines what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.library import Library

MAX_TOGETHER = 16384
"""Elements of the queries, or of the keys, that are normed together."""
_MOST_HEAD_DIM = 256
_HEAD_DIM_STEP = 8

HeadNormKind = Literal["layer", "rms_together"]
_KINDS: dict[HeadNormKind, int] = {"layer": c.NORM_LAYER, "rms_together": c.NORM_RMS}


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """How queries and keys are normed.

    Args:
        kind: `layer`: a LayerNorm without bias of each head by itself (Cohere); `rms_together`: an RMS norm of all
            queries as one vector, and of all keys (OLMo 2).
        query: float16 `[heads, head_dim]` of weights; `None`: queries stay as they are.
        key: float16 `[kv_heads, head_dim]`.
        eps: of both.
    """

    kind: HeadNormKind
    query: Tensor | None
    key: Tensor | None
    eps: float


class HeadKernels:
    def __init__(self, library: Library) -> None:
        self._norm_heads = library.function("exl_norm_heads")

    def norm_heads(self, qkv: Tensor, norms: HeadNorms, *, kv_heads: int) -> Job:
        """Norms queries and keys in place, row by row.

        Args:
            qkv: float16 `[rows, heads + 2 * kv_heads, head_dim]`, 1 to 8 rows; head_dim a multiple of 8, at most 256.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or heads that the kernels do not know.
        """
        rows, count, head_dim = qkv.shape
        heads = count - 2 * kv_heads
        if kv_heads < 1 or heads < 1:
            raise ValueError(f"qkv has {count} heads, which do not fit {kv_heads} key-value heads")
        if not 1 <= rows <= c.MAX_ROWS:
            raise ValueError(f"qkv has {rows} rows; there can be 1 to {c.MAX_ROWS}")
        check("qkv", qkv, torch.float16, (rows, count, head_dim))
        if head_dim % _HEAD_DIM_STEP or head_dim > _MOST_HEAD_DIM:
            raise ValueError(f"heads of {head_dim} elements; they must be a multiple of 8, at most {_MOST_HEAD_DIM}")
        if norms.kind == "rms_together" and max(heads, kv_heads) * head_dim > MAX_TOGETHER:
            raise ValueError(f"{heads} heads of {head_dim} elements; {MAX_TOGETHER} can be normed together")
        if norms.query is None and norms.key is None:
            raise ValueError("neither queries nor keys have a norm")
        tensors = [qkv]
        job = c.CNormHeads(qkv=qkv.data_ptr(), eps=norms.eps, rows=rows, heads=heads, kv_heads=kv_heads)
        job.head_dim, job.kind = head_dim, _KINDS[norms.kind]
        if norms.query is not None:
            check("query norm", norms.query, torch.float16, (heads, head_dim))
            job.query_norm = norms.query.data_ptr()
            tensors.append(norms.query)
        if norms.key is not None:
            check("key norm", norms.key, torch.float16, (kv_heads, head_dim))
            job.key_norm = norms.key.data_ptr()
            tensors.append(norms.key)
        check_on_gpu(qkv=qkv)
        check_together(*tensors)
        return Job(self._norm_heads, job, tuple(tensors))
