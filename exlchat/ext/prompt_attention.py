"""Attention of a prompt's new tokens as an operation that a graph captures: where they stand is read on the card."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.attention import AttentionRules, LayerPages, check_pages
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.library import Library

OLDEST = (8, 0)
"""The first compute capability with what the kernel uses."""
_QUERIES = 128  # of a block
_MOST_SPLITS = 32


class PromptScratch:
    """Where the blocks that share what queries see leave their parts. All layers of a chunk may share it.

    Args:
        rows: of the chunk.
        processors: of the card; as many blocks are wanted.
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, rows: int, device: torch.device, *, processors: int
    ) -> None:
        self.rows = rows
        columns = -(-rows * heads // kv_heads // _QUERIES) * kv_heads
        self.splits = min(max(processors // columns, 1), _MOST_SPLITS)
        self.partial = torch.empty(self.splits, columns, _QUERIES, head_dim + 2, device=device)


class PromptAttention:
    def __init__(self, library: Library) -> None:
        self._prompt_attention = library.function("exl_prompt_attention")

    def prompt_attention(
        self,
        qkv: Tensor,
        out: Tensor,
        *,
        pages: LayerPages,
        page_table: Tensor,
        place: Tensor,
        rules: AttentionRules,
        scratch: PromptScratch,
    ) -> Job:
        """New tokens of a sequence attend to the cached ones and each other; their keys and values are stored.

        Args:
            qkv: float16 `[rows, heads + 2 * kv_heads, head_dim]`, queries and keys normed and turned.
            out: float16 `[rows, heads * head_dim]`; rows behind the last token stay.
            pages: of this layer, in halves.
            page_table: int32 `[pages of the sequence]`: which page holds tokens `256 i` and on.
            place: int32 `[2]`: how many tokens are before the new ones, and how many of the rows are new tokens.
            rules: without norms.
            scratch: for as many rows.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or a head that the kernels do not know.
        """
        check_pages(pages)
        kv_heads, head_dim, rows = pages.keys.shape[0], pages.head_dim, scratch.rows
        heads = qkv.shape[1] - 2 * kv_heads
        if heads < 1 or heads % kv_heads:
            raise ValueError(f"qkv has {qkv.shape[1]} heads, which do not fit {kv_heads} key-value heads")
        if pages.kind.quantized:
            raise ValueError(f"pages are {pages.kind.name}; those of a captured prompt are fp16")
        check("qkv", qkv, torch.float16, (rows, heads + 2 * kv_heads, head_dim))
        check("out", out, torch.float16, (rows, heads * head_dim))
        check("page_table", page_table, torch.int32, (len(page_table),))
        check("place", place, torch.int32, (2,))
        if rules.sinks is not None:
            check("sinks", rules.sinks, torch.float32, (heads,))
        arguments = {
            "qkv": qkv,
            "place": place,
            "page_table": page_table,
            "sinks": rules.sinks,
            "keys": pages.keys,
            "values": pages.values,
            "out": out,
            "partial": scratch.partial,
        }
        tensors = {name: tensor for name, tensor in arguments.items() if tensor is not None}
        check_on_gpu(**tensors)
        check_together(*tensors.values())
        job = c.CPromptAttention(
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            scale=rules.scale,
            softcap=rules.softcap,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=rules.window,
            splits=scratch.splits,
            page_stride=pages.page_stride,
            head_stride=pages.head_stride,
            rows=rows,
        )
        return Job(self._prompt_attention, job, tuple(tensors.values()))
