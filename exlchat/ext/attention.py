"""Decode attention as an operation: one new token, or a few, against the pages of a layer's cache.

`tests/ext/reference_attention.py` defines what it computes, `kv_formats.py` how keys and values are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.kv_formats import CODES4, CODES8, FLOAT8, FLOAT16, PAGE_TOKENS, CacheKind
from exlchat.ext.library import Library

HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_SPLITS = 64
CACHE_FORMATS = {FLOAT16: c.CACHE_HALF, FLOAT8: c.CACHE_FLOAT8, CODES8: c.CACHE_CODES8, CODES4: c.CACHE_CODES4}
"""What the kernels read."""
_TILE = 8  # query heads of a block
_MOST_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Keys and values of one layer in pages of 256 tokens.

    Args:
        kind: how they are stored; the kernels do not read `fp32`.
        keys, values: `[kv_heads, pages, 256, row]`, rows as `kv_formats.encode` makes them. Tokens of a page lie one
            behind the other; heads and pages may lie anywhere, so `[pages, kv_heads, ...]` transposed is as good.
        key_scales, value_scales: float16 `[kv_heads, pages, 256, head_dim / 32]` in the same order, where the kind has
            scales.
    """

    kind: CacheKind
    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def head_dim(self) -> int:
        return self.keys.shape[-1] * 8 * self.keys.element_size() // self.kind.key.bits

    @property
    def page_stride(self) -> int:
        """Rows from a page to the next one of the same head."""
        return self.keys.stride(1) // self.keys.shape[3]

    @property
    def head_stride(self) -> int:
        """Rows from a head to the next one in the same page."""
        return self.keys.stride(0) // self.keys.shape[3]


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """What a model's attention does beside the plain sum.

    Args:
        scale: of the products of query and key, as a rule `head_dim ** -0.5`.
        window: how many tokens are seen, the new one included; 0 sees all.
        softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them.
        query_norm, key_norm: float16 `[head_dim]`, weights of an RMS norm of each head before it is turned.
        eps: of these norms.
        interleaved: elements 2 i and 2 i + 1 of a head are turned together (GPT-J), not i and i + rotary_dim / 2.
        sinks: float32 `[heads]`: a score of each head that joins its softmax and has no value (gpt-oss).
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 0.0
    interleaved: bool = False
    sinks: Tensor | None = None


class AttentionScratch:
    """Where the blocks of a head meet. All layers of a step may share it.

    Args:
        splits: 1 to 64 blocks over which the tokens of a head are spread; `best_splits` knows a good number.
        rows: the most new tokens of a call.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        splits: int,
        device: torch.device,
        *,
        rows: int = 1,
    ) -> None:
        if not 1 <= splits <= MAX_SPLITS:
            raise ValueError(f"splits is {splits}; it must be 1 to {MAX_SPLITS}")
        self.splits = splits
        self.partial = torch.empty(rows, *_scratch_shape(heads, kv_heads, head_dim, splits), device=device)
        self.tickets = torch.zeros(rows, _blocks(heads, kv_heads), dtype=torch.int32, device=device)


def best_splits(heads: int, kv_heads: int, multiprocessors: int) -> int:
    """As many blocks a head as fill the card once.

    Two blocks of 4-bit pages fit a multiprocessor, and attention alone is faster so: 16,384 tokens took an H200 13.4 us
    in 32 splits and 17.2 us in 16. But they leave no room for the next kernel's block, which then starts late: a step
    of an 8B with 128 tokens cached took 2.39 ms with 32 splits and 1.88 ms with 16.
    """
    return min(max(multiprocessors // _blocks(heads, kv_heads), 1), MAX_SPLITS)


def _blocks(heads: int, kv_heads: int) -> int:
    """Blocks that read different queries: each takes up to 8 heads of one key-value head."""
    return kv_heads * -(-heads // kv_heads // _TILE)


def _scratch_shape(heads: int, kv_heads: int, head_dim: int, splits: int) -> tuple[int, ...]:
    return _blocks(heads, kv_heads), splits, _TILE, head_dim + 2


class Attention:
    def __init__(self, library: Library) -> None:
        self._attention = library.function("exl_attention")

    def attention(
        self,
        qkv: Tensor,
        out: Tensor,
        *,
        pages: LayerPages,
        page_table: Tensor,
        position: Tensor,
        turns: Tensor,
        rules: AttentionRules,
        scratch: AttentionScratch,
        scatter: Tensor | None = None,
        least: int = 0,
    ) -> Job:
        """New tokens attend to the cached ones and themselves; their keys and values are stored.

        Each of several tokens comes to the same, and is stored the same, to the last bit, as it would alone behind
        those before it.

        Args:
            qkv: float16 `[rows, heads + 2 * kv_heads, head_dim]` of 1 to 128 tokens, biases added, before norms and
                rotary positions; without the first dimension for one.
            out: float16 `[rows, heads * head_dim]` or, with `scatter`, `[rows, stored]`, and without the first
                dimension where `qkv` has none; places that nothing scatters to stay.
            pages: of this layer.
            page_table: int32 `[pages of the sequence]`: which page holds tokens `256 i` and on; or `[rows, pages]`
                where each token is of a sequence of its own.
            position: int32 `[rows]`: how many tokens are before each. Tokens of one sequence stand in their order, one
                position apart.
            turns: float32 `[positions, rotary_dim / 2, 2]`: cos and sin of each position, for the first `rotary_dim`
                elements of a head, which may be none.
            scatter: int16 (holding uint16) `[heads * head_dim]`: where each element goes.
            least: cached tokens that a block takes at least: of one row short pieces fill the card, of many each would
                only wait.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or a head that the kernels do not know.
        """
        check_pages(pages)
        kv_heads, head_dim, rows = pages.keys.shape[0], pages.head_dim, len(position)
        heads = qkv.shape[-2] - 2 * kv_heads
        if heads < 1 or heads % kv_heads:
            raise ValueError(f"qkv has {qkv.shape[-2]} rows, which do not fit {kv_heads} key-value heads")
        if not 1 <= rows <= min(c.WIDE_ROWS, len(scratch.tickets)):
            raise ValueError(f"position is of {rows} tokens; scratch and kernels take 1 to {len(scratch.tickets)}")
        first = () if rows == 1 and qkv.ndim == 2 else (rows,)
        check("qkv", qkv, torch.float16, (*first, heads + 2 * kv_heads, head_dim))
        check("out", out, torch.float16, (*first, heads * head_dim if scatter is None else out.shape[-1]))
        check("position", position, torch.int32, (rows,))
        check("scratch", scratch.partial[0], torch.float32, _scratch_shape(heads, kv_heads, head_dim, scratch.splits))
        _check_positions(page_table, rows, turns, head_dim)
        if scatter is not None:
            check("scatter", scatter, torch.int16, (heads * head_dim,))
        for name, weight in (("query_norm", rules.query_norm), ("key_norm", rules.key_norm)):
            if weight is not None:
                check(name, weight, torch.float16, (head_dim,))
        if rules.sinks is not None:
            check("sinks", rules.sinks, torch.float32, (heads,))
        arguments = {
            "qkv": qkv,
            "position": position,
            "turns": turns,
            "page_table": page_table,
            "query_norm": rules.query_norm,
            "key_norm": rules.key_norm,
            "scatter": scatter,
            "sinks": rules.sinks,
            "keys": pages.keys,
            "values": pages.values,
            "key_scales": pages.key_scales,
            "value_scales": pages.value_scales,
            "out": out,
            "partial": scratch.partial,
            "tickets": scratch.tickets,
        }
        tensors = {name: tensor for name, tensor in arguments.items() if tensor is not None}
        check_on_gpu(**tensors)
        check_together(*tensors.values())
        job = c.CAttention(
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            page_stride=pages.page_stride,
            head_stride=pages.head_stride,
            scale=rules.scale,
            softcap=rules.softcap,
            eps=rules.eps,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dim=2 * turns.shape[1],
            key_format=CACHE_FORMATS[pages.kind.key],
            value_format=CACHE_FORMATS[pages.kind.value],
            window=rules.window,
            splits=scratch.splits,
            interleaved=rules.interleaved,
            rows=rows,
            least=least,
            out_stride=out.shape[-1],
            table_stride=0 if page_table.ndim == 1 else page_table.stride(0),
        )
        return Job(self._attention, job, tuple(tensors.values()))


def _check_positions(page_table: Tensor, rows: int, turns: Tensor, head_dim: int) -> None:
    pages = page_table.shape[-1]
    # Rows may all be one sequence's, at the same place.
    for table in (page_table,) if page_table.ndim == 1 else page_table:
        check("page_table", table, torch.int32, (pages,))
    if page_table.ndim > 1 and len(page_table) != rows:
        raise ValueError(f"page_table is of {len(page_table)} tokens; it must be of {rows}, or of all alike")
    tokens = pages * PAGE_TOKENS
    if turns.ndim != 3 or turns.shape[0] < tokens or 2 * turns.shape[1] > head_dim:
        raise ValueError(
            f"turns is {tuple(turns.shape)}; it must have {tokens} positions and at most {head_dim // 2} pairs"
        )
    check("turns", turns, torch.float32, (turns.shape[0], turns.shape[1], 2))


def check_pages(pages: LayerPages) -> None:
    """Raises `ValueError` where the kernels do not read such pages: their kind, dtypes, shapes or layout."""
    kind, head_dim = pages.kind, pages.head_dim
    if head_dim not in HEAD_DIMS or kind.key not in CACHE_FORMATS or not kind.fits(head_dim):
        raise ValueError(f"the kernels do not read {kind.name} heads of {head_dim} elements; use fp16")
    for name, rows, scales, element in (
        ("key", pages.keys, pages.key_scales, kind.key),
        ("value", pages.values, pages.value_scales, kind.value),
    ):
        _check_rows(f"{name}s", rows, element.dtype, element.row(head_dim), pages)
        if (scales is not None) != kind.has_scales:
            raise ValueError(f"{name}_scales belong to pages of codes, all of which have them; these are {kind.name}")
        if scales is not None:
            _check_rows(f"{name}_scales", scales, torch.float16, element.scales(head_dim), pages)


def _check_rows(name: str, tensor: Tensor, dtype: torch.dtype, row: int, pages: LayerPages) -> None:
    """Whole pages of rows, in the order of the keys where heads and pages are concerned."""
    kv_heads, count = pages.keys.shape[:2]
    shape = (kv_heads, count, PAGE_TOKENS, row)
    strides = (pages.head_stride * row, pages.page_stride * row, row, 1)
    whole = all(stride % (PAGE_TOKENS * row) == 0 for stride in strides[:2])
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.stride() != strides or not whole:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}; it must be {dtype} "
            f"{shape} of whole pages, in the order of the keys"
        )
    last = (kv_heads - 1) * pages.head_stride + (count - 1) * pages.page_stride + PAGE_TOKENS
    if last > _MOST_ROWS:
        raise ValueError(f"{name} reach over {last} rows; the kernels count up to {_MOST_ROWS}")
